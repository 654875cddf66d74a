from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group import balanced_owners
from lbg_core.group.sizing import (
    HELD_S,
    RETRY_S,
    MemberSample,
    Sample,
    Sharing,
    Sizer,
    Sizing,
    Why,
    busy_share,
    published,
)

SERVICE_S = 0.02
CAPACITY_HZ = 1 / SERVICE_S


class Flow:
    """A group whose messages flow: queues of a balanced assignment, and members that divide their time evenly.

    `limit_hz`: of all members together, as that of a database; a call takes longer then. `calls_max`: calls of a queue
    at a time, as where one key has all of its messages.
    """

    def __init__(
        self,
        sizer: Sizer,
        *,
        queues: int = 64,
        members: int = 2,
        concurrency: int = 1,
        service_s: float = SERVICE_S,
        limit_hz: float = math.inf,
        calls_max: float = math.inf,
    ) -> None:
        self.sizer, self.queues, self.concurrency = sizer, queues, concurrency
        self.service_s, self.limit_hz, self.calls_max = service_s, limit_hz, calls_max
        self.now = 1000.0
        self.waiting = [0.0] * queues
        self.names: list[str] = []
        self.calls: dict[str, float] = {}
        self.busy_s: dict[str, float] = {}
        self.delivered: dict[str, list[float]] = {}
        self._started = 0
        self.scale(members)

    @property
    def members(self) -> int:
        return len(self.names)

    def scale(self, members: int) -> None:
        while len(self.names) < members:
            name = f"incarnation-{self._started}"
            self._started += 1
            self.names.append(name)
            self.calls[name] = self.busy_s[name] = 0.0
            self.delivered[name] = [0.0] * self.queues
        del self.names[members:]

    def restart(self, index: int) -> None:
        last = self.names[index:]
        del self.names[index:]
        self.scale(index + 1)
        self.names += last[1:]

    def sample(self, names: Iterable[str] | None = None) -> Sample:
        members = tuple(
            MemberSample(
                name,
                self.concurrency,
                int(self.calls[name]),
                self.busy_s[name],
                {queue: int(n) for queue, n in enumerate(self.delivered[name])},
            )
            for name in (self.names if names is None else names)
        )
        return Sample(self.now, members, {queue: round(n) for queue, n in enumerate(self.waiting)})

    def run(self, seconds: float, hz: float | Sequence[float], *, every_s: float = 10.0) -> Sizing:
        """`hz`: messages a second of all queues, or of each."""
        for _ in range(round(seconds / every_s)):
            self.flow(every_s, hz)
            self.sizer.add(self.sample())
        return self.sizer.sizing()

    def flow(self, seconds: float, hz: float | Sequence[float]) -> None:
        self.now += seconds
        rates = [hz / self.queues] * self.queues if isinstance(hz, int | float) else hz
        owners = balanced_owners(self.queues, frozenset(range(self.members)))
        for queue, rate in enumerate(rates):
            self.waiting[queue] += rate * seconds
        service_s = max(self.service_s, self.members * self.concurrency / self.limit_hz)
        for index, name in enumerate(self.names):
            mine = [queue for queue, owner in enumerate(owners) if owner == index]
            left = self.concurrency * seconds / service_s
            for number, queue in enumerate(sorted(mine, key=self.waiting.__getitem__)):
                most = self.calls_max * seconds / service_s
                done = min(self.waiting[queue], most, left / (len(mine) - number))
                left -= done
                self.waiting[queue] -= done
                self.calls[name] += done
                self.busy_s[name] += done * service_s
                self.delivered[name][queue] += done


def by_member(*members: float) -> float:
    """Messages a second that keep so many members busy."""
    return sum(members) * CAPACITY_HZ


def test_nothing_is_wanted_while_nothing_is_known() -> None:
    sizer = Sizer(10)
    assert sizer.sizing() == Sizing(None, why=Why.UNKNOWN)

    sizer.add(Flow(sizer).sample())
    assert sizer.sizing().wanted is None


def test_messages_that_wait_are_known_while_the_time_of_a_call_is_not() -> None:
    flow = Flow(Sizer(10), members=1, calls_max=0)

    sizing = flow.run(30, 6.4)

    assert (sizing.wanted, sizing.why, sizing.service_s) == (None, Why.UNKNOWN, None)
    assert sizing.arrivals_hz == pytest.approx(6.4)
    assert sizing.waiting == 192


def test_an_idle_group_wants_one_member() -> None:
    sizing = Flow(Sizer(10)).run(30, 0)

    assert (sizing.wanted, sizing.arrivals_hz, sizing.clears_in_s) == (1, 0.0, 0.0)


def test_a_group_without_members_is_unknown() -> None:
    flow = Flow(Sizer(10))
    flow.run(60, by_member(1.5))

    for _ in range(2):  # one may have missed all
        flow.flow(10, 0)
        flow.sizer.add(flow.sample(()))

    assert flow.sizer.sizing().wanted is None


def test_a_sample_without_counts_is_unknown_and_counts_for_nothing() -> None:
    flow = Flow(Sizer(10), members=4)
    flow.run(120, by_member(3.2))
    flow.flow(10, by_member(3.2))

    flow.sizer.add(Sample(flow.now, flow.sample().members, {}))
    assert flow.sizer.sizing().wanted is None

    sizing = flow.run(10, by_member(3.2))
    assert sizing.wanted == 4
    assert sizing.arrivals_hz == pytest.approx(by_member(3.2), rel=0.01)


@pytest.mark.parametrize(("load", "wanted"), [(0.5, 1), (0.9, 1), (1.5, 2), (1.8, 2), (7.2, 8)])
def test_steady_arrivals_want_the_members_that_they_keep_busy(load: float, wanted: int) -> None:
    sizing = Flow(Sizer(10), members=8).run(600, by_member(load))

    assert (sizing.wanted, sizing.why) == (wanted, Why.ARRIVALS)
    assert sizing.arrivals_hz == pytest.approx(by_member(load), rel=0.02)  # counts are whole messages
    assert sizing.service_s == pytest.approx(SERVICE_S, rel=0.01)
    assert sizing.capacity_hz == pytest.approx(CAPACITY_HZ, rel=0.01)


def test_concurrent_calls_are_capacity() -> None:
    sizing = Flow(Sizer(10), concurrency=4).run(120, by_member(7))

    assert sizing.wanted == 2
    assert sizing.capacity_hz == pytest.approx(4 * CAPACITY_HZ, rel=0.01)


def test_growth_is_extrapolated_over_the_start_of_a_pod() -> None:
    flow = Flow(Sizer(10), members=8)
    for step in range(60):
        flow.run(10, by_member(1 + step / 10))

    assert flow.sizer.sizing().wanted == 8  # 6.9 now, and 7.2 in 30 s


def test_a_backlog_wants_members_that_clear_it_in_time() -> None:
    flow = Flow(Sizer(10), members=2)
    flow.run(120, by_member(1.5))
    flow.waiting = [by_member(180) / 64] * 64  # three members for the time
    flow.sizer = fresh(flow)

    sizing = flow.run(30, by_member(1.5))

    assert (sizing.why, sizing.queue) == (Why.BACKLOG, None)
    assert sizing.wanted in (5, 6)


def fresh(flow: Flow) -> Sizer:
    """A sizer as that of an operator that starts now."""
    sizer = Sizer(10)
    sizer.add(flow.sample())
    return sizer


def test_a_backlog_is_gone_at_the_present_rate() -> None:
    flow = Flow(Sizer(10), members=4)
    flow.waiting = [by_member(100) / 64] * 64
    flow.sizer = fresh(flow)

    sizing = flow.run(30, by_member(2))

    assert sizing.clears_in_s == pytest.approx((100 - 2 * 30) / 2, rel=0.05)


def test_a_burst_is_not_taken_to_arrive_still_when_nothing_comes() -> None:
    flow = Flow(Sizer(10), members=2)
    flow.run(60, 0)
    flow.run(10, by_member(20))

    sizing = flow.run(40, 0)

    assert sizing.arrivals_hz is not None
    assert sizing.arrivals_hz < by_member(0.1)
    assert sizing.clears_in_s == pytest.approx((200 - 2 * 50) / 2, rel=0.1)


def test_a_backlog_that_grows_is_never_gone() -> None:
    sizing = Flow(Sizer(10), members=2).run(120, by_member(3))

    assert sizing.clears_in_s is None


def test_a_queue_above_what_a_member_can_do_is_left_out_and_named() -> None:
    flow = Flow(Sizer(10), members=4)
    rates = [by_member(1.0) / 63] * 64
    rates[5] = by_member(1.6)

    sizing = flow.run(600, rates)

    assert (sizing.why, sizing.queue) == (Why.QUEUE_LIMITS, 5)
    assert sizing.wanted is not None
    assert sizing.wanted <= 5


def test_a_key_that_holds_a_member_up_is_left_out_and_named() -> None:
    flow = Flow(Sizer(10), queues=4, members=4, concurrency=8, calls_max=1)
    rates = [by_member(0.1)] * 4
    rates[3] = by_member(1.5)  # of one call at a time, where the member could have eight

    sizing = flow.run(1200, rates)

    assert sizing.waiting > by_member(400)
    assert (sizing.wanted, sizing.why, sizing.queue) == (1, Why.QUEUE_LIMITS, 3)


def test_long_calls_hold_no_member_up() -> None:
    """Only ended calls are counted, and in most intervals none ends."""
    sizer = Sizer(10)
    waiting = dict.fromkeys(range(64), 6)
    for number in range(60):
        ended = number // 6
        members = tuple(
            MemberSample(f"incarnation-{one}", 1, ended, 60.0 * ended, {one: ended, one + 8: ended})
            for one in range(8)
        )
        sizer.add(Sample(10.0 * number, members, waiting))

    assert sizer.sizing().wanted == 64


def test_members_that_brought_no_throughput_are_not_wanted() -> None:
    flow = Flow(Sizer(10), members=4, limit_hz=by_member(4))
    flow.run(300, by_member(6))
    wanted = flow.sizer.sizing().wanted
    assert wanted is not None
    assert wanted > 6

    flow.scale(8)
    sizing = flow.run(120, by_member(6))

    assert (sizing.wanted, sizing.why) == (4, Why.NO_MORE_THROUGHPUT)


def test_more_members_are_wanted_again_when_the_database_is_well() -> None:
    flow = Flow(Sizer(10), members=4, limit_hz=by_member(4))
    flow.run(300, by_member(6))
    flow.scale(8)
    flow.run(120, by_member(6))
    flow.limit_hz = math.inf

    sizing = flow.run(60, by_member(6))

    assert sizing.wanted is not None
    assert sizing.wanted >= 7
    assert sizing.why is not Why.NO_MORE_THROUGHPUT


def test_more_members_are_tried_again_after_a_time() -> None:
    flow = Flow(Sizer(10), members=4, limit_hz=by_member(4))
    flow.run(300, by_member(6))
    flow.scale(8)
    flow.run(120, by_member(6))
    flow.scale(4)

    assert flow.run(RETRY_S - 120, by_member(6)).why is Why.NO_MORE_THROUGHPUT
    assert flow.run(120, by_member(6)).why is not Why.NO_MORE_THROUGHPUT


def test_members_that_bring_throughput_are_no_reason_to_stop() -> None:
    flow = Flow(Sizer(10), members=2)
    for members in (2, 3, 4, 6):
        flow.scale(members)
        sizing = flow.run(60, by_member(8))
        assert sizing.why is not Why.NO_MORE_THROUGHPUT
        assert sizing.wanted is not None
        assert sizing.wanted > members


def test_a_sample_that_misses_a_member_changes_nothing() -> None:
    flow = Flow(Sizer(10), members=4)
    before = flow.run(120, by_member(3))
    flow.flow(10, by_member(3))

    flow.sizer.add(flow.sample(flow.names[1:]))
    assert flow.sizer.sizing() == before

    assert flow.run(10, by_member(3)).arrivals_hz == pytest.approx(by_member(3), rel=0.01)


def test_members_that_left_are_forgotten_at_the_next_sample() -> None:
    flow = Flow(Sizer(10), members=8)
    flow.run(120, by_member(3))
    flow.scale(4)

    sizing = flow.run(60, by_member(3))

    assert sizing.wanted == 4
    assert sizing.arrivals_hz == pytest.approx(by_member(3))


def test_a_member_that_restarted_counts_from_0() -> None:
    flow = Flow(Sizer(10), members=4)
    flow.run(120, by_member(3))
    flow.restart(2)

    sizing = flow.run(20, by_member(3))

    assert sizing.wanted == 4
    assert sizing.arrivals_hz == pytest.approx(
        by_member(3), rel=0.1
    )  # calls since its last sample are unknown


def test_calls_of_a_member_before_it_was_seen_are_no_arrivals() -> None:
    flow = Flow(Sizer(10), members=4)
    for _ in range(60):
        flow.flow(10, by_member(3))
        flow.sizer.add(flow.sample(flow.names[:2]))

    sizing = flow.run(420, by_member(3))

    assert sizing.arrivals_hz == pytest.approx(by_member(3), rel=0.01)
    assert sizing.wanted == 4


def test_deliveries_that_count_from_0_again_are_no_fewer() -> None:
    flow = Flow(Sizer(10), members=4)
    for _ in range(60):
        flow.run(10, by_member(3))
        for counts in flow.delivered.values():
            counts[:] = [0.0] * flow.queues

    assert flow.sizer.sizing().wanted == 4


def test_fewer_members_are_wanted_only_after_they_would_have_sufficed_for_a_time() -> None:
    flow = Flow(Sizer(10), members=8)
    flow.run(300, by_member(6))
    wanted = flow.sizer.sizing().wanted

    assert flow.run(HELD_S, by_member(2)).wanted == wanted
    assert flow.run(HELD_S, by_member(2)).wanted == 3


def test_a_load_near_a_limit_wants_one_number_of_members() -> None:
    flow = Flow(Sizer(10), members=8)

    wanted = {flow.run(10, by_member(7.2)).wanted for _ in range(90)}

    assert wanted - {None} == {8}


def test_a_burst_is_a_backlog_and_no_load_that_lasts() -> None:
    flow = Flow(Sizer(10), members=1)
    flow.run(300, by_member(0.5))
    flow.waiting = [waiting + by_member(180) / 64 for waiting in flow.waiting]

    wanted = [flow.run(10, by_member(0.5)).wanted for _ in range(6)]

    assert (
        max(one or 0 for one in wanted) == 5
    )  # three to clear it, half a one, and what is three times as much


def test_a_step_is_followed_when_it_lasts_for_two_samples() -> None:
    flow = Flow(Sizer(10), members=1)
    flow.run(300, by_member(0.5))

    wanted = flow.run(20, by_member(5)).wanted

    assert wanted is not None
    assert 6 <= wanted <= 10


def test_chance_of_arrivals_changes_nothing_for_long() -> None:
    chance = random.Random(1)
    flow = Flow(Sizer(10), members=8)
    flow.run(300, by_member(6.5))
    wanted = [
        flow.run(10, chance.gauss(by_member(6.5), math.sqrt(by_member(6.5) / 10))).wanted for _ in range(360)
    ]

    assert set(wanted) <= {7, 8}
    assert sum(one != other for one, other in pairwise(wanted)) <= 4


@pytest.mark.parametrize("every_s", [2.0, 35.0])
def test_the_time_between_samples_changes_nothing(every_s: float) -> None:
    flow = Flow(Sizer(10), members=4)

    sizing = flow.run(420, by_member(3.2), every_s=every_s)

    assert (sizing.wanted, sizing.why) == (4, Why.ARRIVALS)
    assert sizing.arrivals_hz == pytest.approx(by_member(3.2), rel=0.01)


def test_a_sample_of_the_same_moment_is_ignored() -> None:
    flow = Flow(Sizer(10))
    before = flow.run(60, by_member(1.5))

    flow.sizer.add(flow.sample())

    assert flow.sizer.sizing() == before


def test_uneven_queues_want_members_of_which_the_busiest_keeps_up() -> None:
    rates = [by_member(3.6) / 8] * 8  # two of each for four members, one of them with three of seven eighths
    rates[0] *= 2
    even = Flow(Sizer(10, sharing=Sharing.BY_LOAD), queues=8, members=8).run(600, rates)
    balanced = Flow(Sizer(10), queues=8, members=8).run(600, rates)

    assert even.wanted == 5
    assert balanced.wanted is not None
    assert balanced.wanted > 5


def test_queues_move_whole() -> None:
    sizing = Flow(Sizer(10, sharing=Sharing.BY_LOAD), queues=4, members=4).run(600, [by_member(0.6)] * 4)

    assert sizing.wanted == 4


def test_more_members_than_queues_are_wanted_up_to_the_queues_that_there_may_be() -> None:
    def wanted(queues_max: int, members: float) -> int | None:
        sizer = Sizer(10, queues_max=queues_max)
        return Flow(sizer, queues=8, members=8).run(120, by_member(members)).wanted

    assert wanted(0, 12) == 8
    assert wanted(8, 12) == 8
    assert wanted(12, 14) == 12
    assert wanted(64, 12) == 16, "twice as many queues each time"
    assert wanted(64, 4) == wanted(0, 4)


def test_a_queue_that_all_share_limits_nothing() -> None:
    sizing = Flow(Sizer(10, sharing=Sharing.SHARED), queues=1, members=1).run(600, by_member(2.5))

    assert sizing.wanted is not None
    assert sizing.wanted > 2
    assert sizing.why is Why.BACKLOG


def test_calls_that_are_long_for_the_target_leave_members_idle() -> None:
    assert busy_share(0.02, 1, 10) == pytest.approx(0.98, abs=0.01)
    assert 0.5 < busy_share(1.5, 1, 10) < 0.7
    assert busy_share(60, 1, 10) == pytest.approx(0.5)
    assert busy_share(1.5, 16, 10) > 0.95


def test_members_are_filled_less_with_calls_that_are_long_for_the_target() -> None:
    flow = Flow(Sizer(10), members=8, service_s=1.5)

    sizing = flow.run(
        1200, 3.8 / 1.5
    )  # less than four members have to do, and each may be busy for 0.59 of the time

    assert (sizing.wanted, sizing.why) == (7, Why.ARRIVALS)


RATES = st.lists(st.integers(1, 4000), min_size=1, max_size=48)


def steady(calls: Sequence[int], waiting: Sequence[int], members: int) -> Sizing:
    """Of a group in which so many calls of each queue ended in 10 s, while as much waited."""
    sizer, left = Sizer(10), dict(enumerate(waiting))
    for at, part in ((0.0, 0), (10.0, 1)):
        done = [part * count for count in calls]
        each = [
            MemberSample(
                str(index),
                1,
                sum(done[index::members]),
                sum(done[index::members]) * SERVICE_S,
                {queue: done[queue] for queue in range(index, len(done), members)},
            )
            for index in range(members)
        ]
        sizer.add(Sample(at, tuple(each), left))
    return sizer.sizing()


@given(RATES, st.integers(0, 100_000), st.integers(1, 12), st.data())
def test_more_arrivals_or_a_longer_backlog_never_want_fewer_members(
    calls: list[int], waiting: int, members: int, data: st.DataObject
) -> None:
    queue = data.draw(st.integers(0, len(calls) - 1))
    left = [waiting // len(calls)] * len(calls)
    more, longer = list(calls), list(left)
    more[queue] += data.draw(st.integers(1, 4000))
    longer[queue] += data.draw(st.integers(1, 100_000))

    wanted = steady(calls, left, members).wanted

    assert wanted is not None
    for sizing in (steady(more, left, members), steady(calls, longer, members)):
        assert sizing.wanted is not None
        assert sizing.wanted >= wanted


@given(RATES, st.integers(0, 10**9), st.integers(1, 12))
def test_at_most_one_member_for_each_queue_is_wanted(calls: list[int], waiting: int, members: int) -> None:
    sizing = steady(calls, [waiting] * len(calls), members)

    assert sizing.wanted is not None
    assert 1 <= sizing.wanted <= len(calls)
    for value in (sizing.arrivals_hz, sizing.service_s, sizing.capacity_hz, sizing.clears_in_s):
        assert value is None or math.isfinite(value)


def followed(value: float, current: int, tolerance: float) -> int:
    """Replicas of a HorizontalPodAutoscaler by an external metric with AverageValue 1, in thousandths."""
    thousandths = math.ceil(round(value * 1000, 6))
    ratio = thousandths / (1000 * current)
    return current if 1 - tolerance <= ratio <= 1 + tolerance else math.ceil(thousandths / 1000)


NUMBERS = range(1, 201)


def test_the_autoscaler_goes_where_it_can_or_a_step_further_and_never_below() -> None:
    for current in NUMBERS:
        least = math.floor(current * 1.1 + 1e-9) + 1
        for wanted in NUMBERS:
            reached = followed(published(wanted, current), current, 0.1)
            if wanted > current:
                assert reached == max(wanted, least)
            else:
                assert reached == (wanted if wanted - 0.99 < current * 0.9 else current)


@pytest.mark.parametrize(
    ("current", "wanted", "reached"),
    [
        (10, 11, 12),
        (10, 9, 9),
        (20, 21, 23),
        (20, 18, 18),
        (20, 19, 20),
        (50, 51, 56),
        (50, 60, 60),
        (50, 46, 50),
    ],
)
def test_a_step_that_the_tolerance_hides_is_a_larger_one_or_none(
    current: int, wanted: int, reached: int
) -> None:
    assert followed(published(wanted, current), current, 0.1) == reached


@given(st.integers(1, 200), st.integers(1, 200))
def test_the_autoscaler_reaches_every_number_without_tolerance(wanted: int, current: int) -> None:
    assert followed(published(wanted, current, 0.0), current, 0.0) == wanted
