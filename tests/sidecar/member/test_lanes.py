"""Lanes: one call of a key at a time, in order, whatever ends in whatever order."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.lanes import Lanes
from lbg_sidecar.core.message_states import Event, Hold


def held(attachment: Attachment, tag: int, lane: object) -> InFlight:
    message = InFlight(attachment, tag)
    message.lane = lane
    return message


def admitted(lanes: Lanes, attachment: Attachment, *keys: object) -> list[InFlight]:
    first = attachment.delivered + 1
    arrivals = [held(attachment, first + n, key) for n, key in enumerate(keys)]
    attachment.delivered += len(arrivals)
    attachment.ack_window.delivered(arrivals)
    lanes.admit(attachment, arrivals)
    return arrivals


def all_called(lanes: Lanes) -> list[InFlight]:
    called = []
    while (message := lanes.take()) is not None:
        lanes.move(message, Event.CALL)
        called.append(message)
    return called


def closed(lanes: Lanes, attachment: Attachment) -> list[InFlight]:
    return lanes.close(attachment, attachment.ack_window.leave())


def test_messages_of_a_key_run_one_after_another_and_other_keys_beside_them() -> None:
    lanes, queue = Lanes(concurrency=8), Attachment(0, 1)
    a1, a2, b1, free1, free2 = admitted(lanes, queue, "a", "a", "b", None, None)
    assert all_called(lanes) == [a1, b1, free1, free2]
    lanes.move(a1, Event.FINISH)
    assert all_called(lanes) == [a2]


def test_no_more_than_concurrency_run_over_all_attachments() -> None:
    lanes, one, two = Lanes(concurrency=2), Attachment(0, 1), Attachment(1, 1)
    admitted(lanes, one, "a", "b")
    admitted(lanes, two, "c", "d")
    taken = all_called(lanes)
    assert [message.lane for message in taken] == ["a", "c"]
    lanes.move(taken[0], Event.FINISH)
    assert [message.lane for message in all_called(lanes)] == ["b"]


def test_of_a_queue_the_oldest_that_may_start_is_the_next_so_that_acks_are_cumulative() -> None:
    lanes, queue = Lanes(concurrency=1), Attachment(0, 1)
    a1, b2, a3, c4, a5 = admitted(lanes, queue, "a", "b", "a", "c", "a")
    for message in (a1, b2, a3, c4, a5):
        assert all_called(lanes) == [message]
        lanes.move(message, Event.FINISH)


def test_a_message_that_is_retried_goes_behind_all_that_are_there() -> None:
    lanes, queue = Lanes(concurrency=1), Attachment(0, 1)
    a1, b2, c3 = admitted(lanes, queue, "a", "b", "c")
    assert all_called(lanes) == [a1]
    a1.calls = 1
    lanes.delay(a1, due=0.0)
    lanes.wake(0.0)
    (d4,) = admitted(lanes, queue, "d")
    for message in (b2, c3, a1, d4):
        assert all_called(lanes) == [message]
        lanes.move(message, Event.FINISH)


def test_a_message_that_is_put_back_is_the_next_before_an_older_one() -> None:
    lanes, queue = Lanes(concurrency=2), Attachment(0, 1)
    a1, a2, b3 = admitted(lanes, queue, "a", "a", "b")
    assert lanes.take() is a1
    lanes.move(a1, Event.CALL)
    assert lanes.take() is b3
    lanes.put_back(b3)
    lanes.move(a1, Event.FINISH)
    assert lanes.take() is b3
    assert lanes.take() is a2


def test_a_message_that_is_put_back_is_the_next_again() -> None:
    lanes, one, two = Lanes(concurrency=4), Attachment(0, 1), Attachment(1, 1)
    first, *_ = admitted(lanes, one, "a", "b", "c")
    admitted(lanes, two, "d")
    assert lanes.take() is first
    lanes.put_back(first)
    assert lanes.take() is first


def test_a_delayed_message_blocks_its_lane_until_it_is_due_and_no_other() -> None:
    lanes, queue = Lanes(concurrency=4), Attachment(0, 1)
    a1, a2, b1, b2 = admitted(lanes, queue, "a", "a", "b", "b")
    assert all_called(lanes) == [a1, b1]
    lanes.delay(a1, due=5.0)
    lanes.move(b1, Event.FINISH)
    lanes.wake(4.9)
    assert all_called(lanes) == [b2]
    assert lanes.next_due() == 5.0
    lanes.wake(5.0)
    assert all_called(lanes) == [a1]
    lanes.move(a1, Event.FINISH)
    assert all_called(lanes) == [a2]


def test_a_parked_message_frees_its_slot_and_blocks_its_lane() -> None:
    lanes, queue = Lanes(concurrency=1), Attachment(0, 1)
    a1, a2, b1 = admitted(lanes, queue, "a", "a", "b")
    assert all_called(lanes) == [a1]
    lanes.move(a1, Event.REFUSE)
    assert all_called(lanes) == [b1]
    lanes.move(b1, Event.FINISH)
    assert all_called(lanes) == []
    lanes.move(a1, Event.FINISH)
    assert all_called(lanes) == [a2]


def test_a_paused_attachment_starts_only_what_is_older_than_what_was_started() -> None:
    lanes, queue = Lanes(concurrency=2), Attachment(0, 1)
    a1, a2, b3, c4 = admitted(lanes, queue, "a", "a", "b", "c")
    assert all_called(lanes) == [a1, b3]
    lanes.hold(queue, Hold.DRAIN)
    admitted(lanes, queue, "d")
    lanes.move(b3, Event.FINISH)
    lanes.move(a1, Event.FINISH)
    assert not queue.drained
    assert all_called(lanes) == [a2], (
        "it lies before b3, which is done: without it b3 could not be acknowledged"
    )
    lanes.move(a2, Event.FINISH)
    assert queue.drained
    lanes.let_go(queue, Hold.DRAIN | Hold.HALT)
    assert [message.lane for message in all_called(lanes)] == ["c", "d"]
    assert c4 in queue.running


def test_a_halted_attachment_starts_nothing_and_thaw_brings_all_back() -> None:
    lanes, queue = Lanes(concurrency=2), Attachment(0, 1)
    a1, a2, b3 = admitted(lanes, queue, "a", "a", "b")
    assert all_called(lanes) == [a1, b3]
    lanes.hold(queue, Hold.DRAIN)
    lanes.move(a1, Event.FINISH)
    lanes.hold(queue, Hold.HALT)
    lanes.move(b3, Event.FINISH)
    assert queue.drained
    assert all_called(lanes) == []
    lanes.let_go(queue, Hold.DRAIN | Hold.HALT)
    assert all_called(lanes) == [a2]


def test_the_end_of_a_handoff_starts_nothing_that_still_waits_for_its_former_consumer() -> None:
    lanes, queue = Lanes(concurrency=2), Attachment(0, 1)
    lanes.hold(queue, Hold.TAKEOVER)
    admitted(lanes, queue, "a")
    lanes.hold(queue, Hold.DRAIN)
    lanes.let_go(queue, Hold.DRAIN | Hold.HALT)
    assert all_called(lanes) == []
    lanes.let_go(queue, Hold.TAKEOVER)
    assert [message.lane for message in all_called(lanes)] == ["a"]


def test_an_attachment_is_paused_and_drained_with_that_of_released_copies() -> None:
    lanes, queue, beside = Lanes(concurrency=1), Attachment(0, 1), Attachment(0, 1)
    queue.beside, beside.beside_of = beside, queue
    first, second = admitted(lanes, beside, "a", "b")
    assert all_called(lanes) == [first]
    lanes.hold(queue, Hold.DRAIN)
    assert not queue.drained
    lanes.move(first, Event.FINISH)
    assert queue.drained
    assert not all_called(lanes)
    lanes.let_go(queue, Hold.DRAIN | Hold.HALT)
    assert all_called(lanes) == [second]
    lanes.hold(queue, Hold.DRAIN)
    lanes.hold(queue, Hold.HALT)
    lanes.delay(second, due=0.0)
    lanes.wake(1.0)
    assert not all_called(lanes)


def test_a_closed_attachment_forgets_what_waits_and_reports_what_runs() -> None:
    lanes, queue = Lanes(concurrency=4), Attachment(0, 1)
    a1, _, b1 = admitted(lanes, queue, "a", "a", "b")
    assert all_called(lanes) == [a1, b1]
    lanes.delay(b1, due=1.0)
    assert closed(lanes, queue) == [a1]
    lanes.move(a1, Event.END)
    lanes.wake(2.0)
    assert lanes.next_due() is None
    assert all_called(lanes) == []
    admitted(lanes, queue, "c")
    assert all_called(lanes) == []


def test_a_lane_waits_for_its_aborted_call_also_in_a_newer_attachment() -> None:
    lanes, old = Lanes(concurrency=4), Attachment(0, 1)
    (a1,) = admitted(lanes, old, "a")
    assert all_called(lanes) == [a1]
    closed(lanes, old)
    new = Attachment(0, 2)
    a1_again, a2, b1 = admitted(lanes, new, "a", "a", "b")
    assert all_called(lanes) == [b1]
    lanes.move(a1, Event.END)
    assert all_called(lanes) == [a1_again]
    lanes.move(a1_again, Event.FINISH)
    assert all_called(lanes) == [a2]


def test_a_key_waits_for_its_aborted_call_also_in_another_queue() -> None:
    lanes, one, two = Lanes(concurrency=4), Attachment(0, 1), Attachment(1, 1)
    (a,) = admitted(lanes, one, "a")
    all_called(lanes)
    closed(lanes, one)
    a_moved, b = admitted(lanes, two, "a", "b")
    assert all_called(lanes) == [b]
    lanes.move(a, Event.END)
    assert all_called(lanes) == [a_moved]


def test_where_a_queue_is_one_lane_a_hash_waits_for_its_aborted_call_also_in_another_queue() -> None:
    lanes, one, two, three = Lanes(concurrency=4), *(Attachment(queue, 1) for queue in range(3))
    (first,) = admitted(lanes, one, "")
    first.hash_ = 6
    all_called(lanes)
    closed(lanes, one)
    for queue, hash_ in ((two, 6), (three, 5), (three, None)):
        admitted(lanes, queue, "")[0].hash_ = hash_
    assert [message.hash_ for message in all_called(lanes)] == [5]
    lanes.move(first, Event.END)
    assert [message.hash_ for message in all_called(lanes)] == [6]


@given(
    seed=st.integers(0, 2**32),
    concurrency=st.integers(1, 5),
    keys=st.lists(st.sampled_from(["a", "b", "c", None]), max_size=40),
)
def test_any_history_keeps_order_limit_and_every_message(
    seed: int, concurrency: int, keys: list[str | None]
) -> None:
    chance = random.Random(seed)
    lanes = Lanes(concurrency=concurrency)
    attachments = [Attachment(0, 1), Attachment(1, 1)]
    arrivals = [(attachments[n % 2], key) for n, key in enumerate(keys)]
    running: list[InFlight] = []
    refused: list[InFlight] = []
    finished: dict[object, list[int]] = {}
    now = 0.0
    total = 0
    while True:
        now += 1
        action = chance.randrange(8)
        if arrivals and action < 2:
            attachment, key = arrivals.pop(0)
            admitted(lanes, attachment, key)
        elif action == 2:
            lanes.hold(attachments[chance.randrange(2)], Hold.DRAIN)
        elif action == 3:
            lanes.let_go(attachments[chance.randrange(2)], Hold.DRAIN | Hold.HALT)
        elif running:
            message = running.pop(chance.randrange(len(running)))
            end = chance.randrange(4)
            if end == 0:
                lanes.delay(message, now + chance.randrange(5))
            elif end == 1:
                lanes.move(message, Event.REFUSE)
                refused.append(message)
            else:
                lanes.move(message, Event.FINISH)
                finished.setdefault((message.attachment.queue, message.lane), []).append(message.tag)
                total += 1
        elif refused:
            message = refused.pop()
            lanes.move(message, Event.FINISH)
            finished.setdefault((message.attachment.queue, message.lane), []).append(message.tag)
            total += 1
        lanes.wake(now)
        while (taken := lanes.take()) is not None:
            same = [m for m in running if m.lane is not None and m.lane == taken.lane]
            assert not any(m.attachment is taken.attachment for m in same)
            lanes.move(taken, Event.CALL)
            running.append(taken)
        assert set(lanes.running) == set(running)
        assert len(running) <= concurrency
        if total == len(keys):
            break
        assert now < 10_000
    for (_, lane), tags in finished.items():
        if lane is not None:
            assert tags == sorted(tags)
    assert all(attachment.drained or attachment.paused for attachment in attachments)
