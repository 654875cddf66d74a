"""Concurrency of an application, against applications with known bottlenecks."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group import Engine, GroupSpec
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Hello
from lbg_sidecar import MemberSettings
from lbg_sidecar.app.callable import handler_channel
from lbg_sidecar.app.command import CommandChannel
from lbg_sidecar.app.http_push import BatchChannel, PushChannel
from lbg_sidecar.app.websocket import StreamChannel, StreamSettings
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.effects import Capacity, Requeue
from lbg_sidecar.core.limits import BatchLimit, CallLimits, ConcurrencyLimit
from lbg_sidecar.io.startup import Group, machine_of
from lbg_sidecar.message import ACK, INTERRUPTED
from testing.member.native_member import NativeMember

HANDOFF_S = 3.0
MOST = 16


@dataclass
class Application:
    """Works on `workers` messages at a time, in the order in which it gets them; the rest waits inside."""

    limit: ConcurrencyLimit
    workers: int
    takes_s: Callable[[int], float]
    now: float = 0.0
    answered: int = 0
    waiting: deque[tuple[InFlight, float]] = field(default_factory=deque)
    at_work: list[tuple[float, int, InFlight, float]] = field(default_factory=list)
    given: int = 0

    def answer(self, count: int) -> Iterator[int]:
        """It gets all that it may have, and answers so many; yields after each how many wait inside."""
        for _ in range(count):
            while len(self.waiting) + len(self.at_work) < self.limit.size:
                held = InFlight(Attachment(0, 1), self.given + 1)
                self.given += 1
                self.limit.began(held)
                self.waiting.append((held, self.now))
            while self.waiting and len(self.at_work) < self.workers:
                held, given_at = self.waiting.popleft()
                ends_at = self.now + self.takes_s(held.tag)
                heapq.heappush(self.at_work, (ends_at, held.tag, held, given_at))
            self.now, _, held, given_at = heapq.heappop(self.at_work)
            self.answered += 1
            self.limit.ended(held, self.now - given_at, self.now)
            yield len(self.waiting)

    def settle(self, count: int) -> None:
        for _ in self.answer(count):
            pass


def application(
    workers: int, takes_s: float | Callable[[int], float], *, most: int = MOST, expects_move: bool = False
) -> Application:
    limit = ConcurrencyLimit(most, HANDOFF_S)
    limit.expects_move = expects_move
    return Application(limit, workers, takes_s if callable(takes_s) else lambda _: takes_s)


def uneven(short_s: float, long_s: float, *, every: int) -> Callable[[int], float]:
    return lambda number: long_s if number % every == 0 else short_s


@pytest.mark.parametrize("takes_s", [0.2, 0.5, 2.0, 3.5])
def test_a_slow_application_that_works_on_one_at_a_time_has_hardly_ever_another(takes_s: float) -> None:
    serial = application(1, takes_s)
    waited = list(serial.answer(500))
    assert max(waited) <= 1
    assert sum(waited) <= 25


@pytest.mark.parametrize("takes_s", [0.2, 0.5, 2.0, 3.5])
def test_a_slow_application_that_works_on_all_gets_all_within_a_few_calls(takes_s: float) -> None:
    parallel = application(MOST, takes_s)
    parallel.settle(25)
    assert parallel.limit.size == MOST
    assert parallel.now <= 10 * takes_s


def test_a_slow_application_that_works_on_four_gets_no_more_than_it_works_on_for_long() -> None:
    four = application(4, 0.5)
    four.settle(64)
    began_at = four.now
    waited = list(four.answer(400))
    assert 400 / (four.now - began_at) > 0.95 * 4 / 0.5
    assert sum(waited) / len(waited) < 0.5


def test_an_application_that_works_on_more_than_before_gets_more() -> None:
    growing = application(4, 0.5)
    growing.settle(64)
    assert growing.limit.size < MOST
    growing.workers = MOST
    growing.settle(1000)
    assert growing.limit.size == MOST


@pytest.mark.parametrize("every", [2, 10])
def test_calls_that_overtake_others_show_that_the_application_works_on_many(every: int) -> None:
    parallel = application(MOST, uneven(0.002, 1.0, every=every))
    parallel.settle(200)
    assert parallel.limit.size == MOST


@pytest.mark.parametrize("every", [2, 10])
def test_an_application_that_works_on_one_and_is_slow_now_and_then_is_not_taken_for_another(
    every: int,
) -> None:
    serial = application(1, uneven(0.002, 1.0, every=every))
    serial.settle(50)
    assert sum(wait * serial.limit.size for wait in serial.answer(200)) / 200 <= MOST


@pytest.mark.parametrize("workers", [1, MOST])
def test_a_swift_application_gets_all_at_once(workers: int) -> None:
    swift = application(workers, 0.0001, most=256)
    swift.settle(256)
    assert swift.limit.size == 256


def test_what_waits_inside_a_swift_application_is_soon_worked_on() -> None:
    serial = application(1, 0.01, most=256)
    assert max(serial.answer(500)) * 0.01 <= 0.11


def test_a_pause_of_a_swift_application_is_over_when_what_it_had_is_answered() -> None:
    swift = application(1, lambda number: 0.5 if number == 1000 else 0.0001, most=256)
    swift.settle(1000)
    assert swift.limit.size < 16
    swift.settle(256)
    assert swift.limit.size == 256


def test_an_application_that_becomes_slow_is_given_nothing_more_until_it_has_answered() -> None:
    serial = application(1, lambda number: 0.001 if number <= 500 else 1.0)
    serial.settle(500 + MOST)
    assert sum(serial.answer(100)) <= 10


def test_an_application_that_takes_twice_as_long_for_each_keeps_its_calls() -> None:
    parallel = application(MOST, lambda number: 0.3 if number <= 100 else 0.9)
    parallel.settle(200)
    assert parallel.limit.size >= MOST // 2


def test_before_a_move_nothing_is_tried_whose_end_might_not_be_awaited() -> None:
    slow = application(MOST, 2.0, expects_move=True)
    slow.settle(20)
    assert slow.limit.size == 1
    slow.limit.expects_move = False
    slow.settle(30)
    assert slow.limit.size == MOST


def test_before_a_move_calls_that_end_well_within_the_handoff_time_are_tried() -> None:
    quick = application(MOST, 0.5, expects_move=True)
    quick.settle(30)
    assert quick.limit.size == MOST


def test_what_was_learned_stands_when_a_move_is_expected() -> None:
    slow = application(MOST, 2.0)
    slow.settle(50)
    slow.limit.expects_move = True
    assert slow.limit.size == MOST


@given(
    workers=st.integers(1, 8),
    most=st.integers(1, 20),
    times=st.lists(st.floats(0.0001, 5.0), min_size=1, max_size=20),
)
def test_it_is_never_less_than_one_nor_more_than_may_be(workers: int, most: int, times: list[float]) -> None:
    any_kind = application(workers, lambda number: times[number % len(times)], most=most)
    for _ in any_kind.answer(300):
        assert 1 <= any_kind.limit.size <= most


# In a member


def limited_member() -> NativeMember:
    return NativeMember(moves=True, concurrency=MOST, limit=ConcurrencyLimit(MOST, HANDOFF_S))


def test_what_a_slow_application_has_not_begun_is_given_back() -> None:
    member = limited_member()
    attachment = member.join()
    member.deliver(attachment, *range(8))
    (first,) = member.take_all(0.0)
    member.machine.revoked(attachment, list(range(1, 9)), 0.1, reassigned=False)
    assert [effect.tags for effect in member.took(Requeue)] == [tuple(range(2, 9))]
    assert first.is_recalled


def test_a_call_that_was_cut_off_makes_room_and_teaches_nothing() -> None:
    member = limited_member()
    attachment = member.join()
    member.deliver(attachment, *range(8))
    for now in range(4):
        (held,) = member.take_all(float(now))
        member.machine.end(held, INTERRUPTED, now + 0.001)
    assert len(member.take_all(5.0)) == 1


def test_a_move_is_expected_until_the_delay_and_a_handoff_after_a_change_of_members_have_passed() -> None:
    member = limited_member()
    member.join()
    calls = member.machine.part(CallLimits)
    assert calls is not None
    limit = calls.limit
    member.machine.tick(7.9)
    assert limit.expects_move
    member.machine.tick(8.1)
    assert not limit.expects_move
    member.machine.message(Hello(Identity(1, "other", "other-1")), 20.0)
    assert limit.expects_move
    member.machine.tick(27.9)
    assert limit.expects_move
    member.machine.tick(28.1)
    assert not limit.expects_move


def sharing_member(limit: ConcurrencyLimit | None) -> NativeMember:
    """A member in a mode in which the broker divides by keys."""
    return NativeMember(keys_at_once=MOST, concurrency=MOST, limit=limit)


def test_where_keys_are_shared_out_the_broker_is_told_how_many_the_application_works_on() -> None:
    limit = ConcurrencyLimit(MOST, HANDOFF_S)
    member = sharing_member(limit)
    attachment = member.join()
    assert [effect.keys for effect in member.took(Capacity)] == [1]
    member.deliver(attachment, *range(100))
    now = 0.0
    while running := member.take_all(now):
        now += 0.5
        for held in running:
            member.machine.end(held, ACK, now)
        member.machine.tick(now)
    assert [effect.keys for effect in member.took(Capacity)] == [2, 4, 8, 16]


def test_the_broker_is_told_again_after_a_new_attachment() -> None:
    member = sharing_member(ConcurrencyLimit(MOST, HANDOFF_S))
    member.machine.closed(member.join(), 1.0)
    member.took(Capacity)
    member.machine.tick(5.0)
    member.attach(5.0)
    assert [effect.keys for effect in member.took(Capacity)] == [1]


def test_a_function_works_on_all_that_was_said_and_nothing_more_is_told() -> None:
    member = sharing_member(None)
    member.join()
    member.machine.tick(1.0)
    assert member.took(Capacity) == []


def test_where_keys_are_shared_out_slow_calls_are_tried_at_once_as_nothing_is_taken_by_force() -> None:
    limit = ConcurrencyLimit(MOST, HANDOFF_S)
    member = sharing_member(limit)
    member.join()
    member.machine.tick(0.1)
    assert not limit.expects_move


@pytest.mark.parametrize(
    ("mode", "opaque", "limited"),
    [
        ("Partitioned", True, True),
        ("Partitioned", False, False),
        ("MessageGroups", True, True),
        ("MessageGroups", False, False),
        ("Sessions", True, False),
    ],
)
def test_only_an_application_that_cannot_be_looked_into_is_limited_and_only_where_messages_are_wanted_back(
    mode: str, opaque: bool, limited: bool
) -> None:
    sizes = {"hash_count": 24, "queue_size_mb": 1, "client_username": "g"}
    queues = {"queue_count": 8} if mode == "Partitioned" else {}
    machine = machine_of(
        MemberSettings(group="g", name="m"),
        Group(GroupSpec("g", "g", mode=mode, **sizes, **queues), Engine("LBG", (0, 1, 0))),
        concurrency=MOST,
        chance=Random(0),
        limit=ConcurrencyLimit if opaque else None,
    )
    assert (machine.part(CallLimits) is not None) is limited
    assert machine.dispatcher.lanes.concurrency == (1 if limited else MOST)


async def handle(message: object) -> None: ...


def test_what_is_called_in_another_process_cannot_be_looked_into() -> None:
    assert CommandChannel(["true"], concurrency=1).limit is ConcurrencyLimit
    assert StreamChannel(StreamSettings(concurrency=1)).limit is ConcurrencyLimit
    assert PushChannel("http://127.0.0.1:1/", concurrency=1).limit is ConcurrencyLimit
    assert BatchChannel("http://127.0.0.1:1/").limit is BatchLimit
    assert handler_channel(handle, concurrency=1).limit is None
