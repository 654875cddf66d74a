"""Acknowledgements out of order in few frames, on a channel that records its calls."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.client.ack_window import (
    APPLIED_AFTER_S,
    FULL_APPLIED_AFTER_S,
    HOLD_S,
    UNPROVEN_FRAMES_MAX,
    AckBatcher,
    AckFrames,
)


class Ledger:
    """Stands in for a channel and for the loop's clock."""

    def __init__(self, prefetch_count=1):
        self.is_open = True
        self.last_delivery_tag = 0
        self.prefetch_count = prefetch_count
        self.acks = []
        self._at_turn_end = []

    def before_writing(self, callback):
        self._at_turn_end.append(callback)

    def ack(self, tag, multiple=False):
        assert multiple
        self.acks.append(tag)

    def end_turn(self):
        callbacks, self._at_turn_end = self._at_turn_end, []
        for callback in callbacks:
            callback()


class Clock:
    """A loop's clock and timers, moved by hand."""

    def __init__(self):
        self.now = 0.0
        self.timers = []

    def time(self):
        return self.now

    def call_later(self, delay, callback):
        return self.call_at(self.now + delay, callback)

    def call_at(self, when, callback):
        timer = Timer(when, callback)
        self.timers.append(timer)
        return timer

    def pass_time(self, seconds):
        self.now += seconds
        due = [timer for timer in self.timers if timer.when <= self.now and not timer.cancelled]
        self.timers = [timer for timer in self.timers if timer.when > self.now]
        for timer in due:
            timer.callback()


class Timer:
    def __init__(self, when, callback):
        self.when, self.callback, self.cancelled = when, callback, False

    def cancel(self):
        self.cancelled = True


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    return clock


def test_one_loop_turn_makes_one_ack(clock):
    ledger = Ledger()
    acks = AckBatcher(ledger)
    for tag in range(1, 6):
        acks.settle(tag)
    assert ledger.acks == []
    ledger.end_turn()
    assert ledger.acks == [5]


def test_only_the_contiguous_prefix_is_acknowledged(clock):
    ledger = Ledger()
    acks = AckBatcher(ledger)
    for tag in (3, 2, 5):
        acks.settle(tag)
    ledger.end_turn()
    assert ledger.acks == []
    assert acks.settled_above_gap == 3
    acks.settle(1)
    ledger.end_turn()
    assert ledger.acks == [3]
    acks.settle(4)
    ledger.end_turn()
    assert ledger.acks == [3, 5]
    assert acks.settled_above_gap == 0


@given(st.permutations(range(1, 30)), st.sets(st.integers(1, 29)))
def test_any_order_ends_with_everything_acknowledged_and_nothing_early(order, ends):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "get_running_loop", Clock)
        ledger = Ledger()
        acks = AckBatcher(ledger)
        settled = set()
        for tag in order:
            acks.settle(tag)
            settled.add(tag)
            if tag in ends:
                ledger.end_turn()
            assert not ledger.acks or set(range(1, ledger.acks[-1] + 1)) <= settled
        acks.flush()
        assert ledger.acks[-1] == 29
        assert ledger.acks == sorted(set(ledger.acks))


def test_settling_twice_is_an_error(clock):
    acks = AckBatcher(Ledger())
    acks.settle(1)
    acks.settle(3)
    for tag in (1, 3):
        with pytest.raises(ValueError, match="before"):
            acks.settle(tag)
        with pytest.raises(ValueError, match="before"):
            acks.skip(tag)


def test_a_message_settled_by_other_means_is_stepped_over_and_never_acknowledged_by_its_own_tag(clock):
    # RabbitMQ answers an ack of a tag that is no longer open with 406, even when `multiple` is set.
    ledger = Ledger()
    acks = AckBatcher(ledger)
    acks.settle(1)
    acks.skip(2)
    ledger.end_turn()
    assert ledger.acks == [1]
    acks.skip(3)
    ledger.end_turn()
    acks.flush()
    assert ledger.acks == [1]
    acks.settle(4)
    ledger.end_turn()
    assert ledger.acks == [1, 4]


def test_a_skip_that_closes_a_gap_lets_the_rest_go(clock):
    ledger = Ledger()
    acks = AckBatcher(ledger)
    acks.settle(2)
    acks.skip(1)
    ledger.end_turn()
    assert ledger.acks == [2]


def test_a_small_part_of_the_prefetch_waits_a_moment(clock):
    ledger = Ledger(prefetch_count=100)
    acks = AckBatcher(ledger)
    acks.settle(1)
    ledger.end_turn()
    assert ledger.acks == []
    clock.pass_time(HOLD_S)
    assert ledger.acks == [1]


def test_a_quarter_of_the_prefetch_does_not_wait(clock):
    ledger = Ledger(prefetch_count=100)
    acks = AckBatcher(ledger)
    for tag in range(1, 26):
        acks.settle(tag)
    ledger.end_turn()
    assert ledger.acks == [25]


def test_flush_does_not_wait(clock):
    ledger = Ledger(prefetch_count=100)
    acks = AckBatcher(ledger)
    acks.settle(1)
    acks.flush()
    acks.flush()
    ledger.end_turn()
    clock.pass_time(1)
    assert ledger.acks == [1]


def settle_one_by_one(acks, ledger, tags):
    for tag in tags:
        acks.settle(tag)
        ledger.end_turn()


def test_frames_without_a_sign_from_the_broker_are_few(clock):
    ledger = Ledger()
    acks = AckBatcher(ledger)
    settle_one_by_one(acks, ledger, range(1, 101))
    assert len(ledger.acks) == UNPROVEN_FRAMES_MAX
    acks.flush()
    assert ledger.acks[-1] == 100
    assert len(ledger.acks) == UNPROVEN_FRAMES_MAX + 1 == 16


def test_the_rest_follows_when_the_oldest_frame_counts_as_applied(clock):
    ledger = Ledger()
    acks = AckBatcher(ledger)
    settle_one_by_one(acks, ledger, range(1, 101))
    clock.pass_time(APPLIED_AFTER_S)
    assert ledger.acks[-1] == 100
    assert len(ledger.acks) == UNPROVEN_FRAMES_MAX + 1


def test_a_delivery_beyond_the_prefetch_proves_the_acks_before_it(clock):
    ledger = Ledger(prefetch_count=3)
    acks = AckBatcher(ledger)
    settle_one_by_one(acks, ledger, range(1, 20))
    assert len(ledger.acks) == UNPROVEN_FRAMES_MAX
    ledger.last_delivery_tag = 13  # 13 could come only because 10 had been applied
    settle_one_by_one(acks, ledger, [20])
    assert ledger.acks[-1] == 20
    settle_one_by_one(acks, ledger, range(21, 31))
    assert len(ledger.acks) == UNPROVEN_FRAMES_MAX + 10
    assert acks.frames_sent == len(ledger.acks)


def test_where_the_window_was_full_a_frame_counts_as_applied_later(clock):
    """Deliveries should have followed it: a broker that stands still reads those acks and a close at once."""
    ledger = Ledger(prefetch_count=40)
    acks = AckBatcher(ledger)
    ledger.last_delivery_tag = 40
    for tag in range(1, UNPROVEN_FRAMES_MAX + 2):
        acks.settle(tag)
        ledger.end_turn()
        clock.pass_time(HOLD_S)
    assert len(ledger.acks) == UNPROVEN_FRAMES_MAX
    clock.pass_time(2 * APPLIED_AFTER_S)
    assert len(ledger.acks) == UNPROVEN_FRAMES_MAX
    clock.pass_time(FULL_APPLIED_AFTER_S)
    assert ledger.acks[-1] == UNPROVEN_FRAMES_MAX + 1


def test_a_delivery_beyond_the_window_proves_as_many_acks_as_it_is_beyond():
    frames = AckFrames()
    for _ in range(UNPROVEN_FRAMES_MAX):
        frames.sent([1], 0.0, delivered=100, prefetch=100)
    assert frames.room(0.0, delivered=100, prefetch=100) == 0
    assert frames.room(0.0, delivered=103, prefetch=100) == 3
    assert frames.room(APPLIED_AFTER_S, delivered=103, prefetch=100) == UNPROVEN_FRAMES_MAX


def test_without_a_prefetch_deliveries_prove_nothing():
    frames = AckFrames()
    frames.sent([5], 0.0, delivered=1000, prefetch=0)
    assert frames.room(0.0, delivered=2000, prefetch=0) == UNPROVEN_FRAMES_MAX - 1
    assert frames.next_room_at == APPLIED_AFTER_S


def test_nothing_is_sent_on_a_closed_channel(clock):
    ledger = Ledger()
    acks = AckBatcher(ledger)
    acks.settle(1)
    ledger.is_open = False
    ledger.end_turn()
    acks.flush()
    clock.pass_time(10)
    assert ledger.acks == []


def test_a_batcher_made_late_takes_what_came_before_as_settled(clock):
    ledger = Ledger()
    ledger.last_delivery_tag = 7
    acks = AckBatcher(ledger)
    acks.settle(8)
    ledger.end_turn()
    assert ledger.acks == [8]
