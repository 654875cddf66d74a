"""Calls that the whole group holds, because what its application depends on is down."""

from __future__ import annotations

import pytest

from lbg_core.admin.member_problems import member_problems
from lbg_core.admin.problems import text_of
from lbg_core.client import Backoff
from lbg_core.group import Names
from lbg_core.group.member_state import HeldCalls, Identity
from lbg_core.group.members_protocol import CallsHeld
from lbg_sidecar import Member, Message
from lbg_sidecar.app.callable import AsyncHandler
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.effects import BreakerClosed, BreakerOpened, Post
from lbg_sidecar.message import ACK, Verdict, retry
from testing.member.group_load import Load
from testing.member.native_member import NativeMember
from testing.member.place import Place
from testing.waiting import until

DOWN = retry("the database is down", scope="group", after_s=10)


def holding(count: int = 16, *, concurrency: int = 4, index: int = 0) -> NativeMember:
    """A member with so many messages of as many keys, in four calls at a time."""
    member = NativeMember(concurrency=concurrency, backoff=Backoff(first_s=1.0, jitter=0.0))
    attachment = member.join(index=index)
    member.deliver(attachment, *((f"k{number}", number, 0) for number in range(count)))
    return member


def taken(member: NativeMember, now: float) -> list[InFlight]:
    """All calls that may start now."""
    member.machine.tick(now)
    found = []
    while (in_flight := member.machine.take(now)) is not None:
        found.append(in_flight)
    return found


def reports(member: NativeMember) -> list[CallsHeld]:
    return [one.message for one in member.took(Post) if isinstance(one.message, CallsHeld)]


def opened() -> tuple[NativeMember, list[InFlight]]:
    """At 1 s the first of four calls finds the database down; the others run on."""
    member = holding()
    calls = taken(member, 1.0)
    member.machine.end(calls[0], DOWN, 1.0)
    return member, calls


def test_no_call_starts_and_no_attempt_is_counted() -> None:
    member, calls = opened()
    assert [(one.seconds, one.reason) for one in reports(member)] == [(10, "the database is down")]
    assert calls[0].attempts == 0
    assert member.machine.dispatcher.counts.retried == 0
    for call in calls[1:]:
        member.machine.end(call, DOWN, 1.1)
    assert reports(member) == []
    assert taken(member, 10.9) == []
    assert [one.reason for one in member.took(BreakerOpened)] == ["the database is down"]


def test_calls_that_began_before_end_as_they_do_and_do_not_close_it() -> None:
    member, calls = opened()
    member.machine.end(calls[1], ACK, 1.2)
    member.machine.end(calls[2], retry("busy"), 1.2)
    assert (calls[1].outcome, calls[2].attempts) == ("ack", 1)
    assert taken(member, 5.0) == []


def test_a_call_that_runs_on_from_before_does_not_keep_the_try_from_starting() -> None:
    member, calls = opened()
    assert calls[1] in member.machine.dispatcher.running
    assert len(taken(member, 11.0)) == 1


def test_one_call_is_tried_and_then_twice_as_many_with_each_that_succeeds() -> None:
    member, calls = opened()
    for call in calls[1:]:
        member.machine.end(call, DOWN, 1.1)
    member.took(Post)
    (probe,) = taken(member, 11.0)
    assert [one.seconds for one in reports(member)] == [30.0]
    member.machine.end(probe, ACK, 11.1)
    assert [one.seconds for one in reports(member)] == [0.0]
    second = taken(member, 11.1)
    assert len(second) == 2
    member.machine.end(second[0], ACK, 11.2)
    assert len(taken(member, 11.2)) == 3
    assert member.took(BreakerClosed) == [BreakerClosed(pytest.approx(10.2))]
    assert member.machine.content().held is None


def test_a_try_that_fails_is_made_again_after_a_longer_wait() -> None:
    member = holding(1)
    down: Verdict = retry("down", scope="group")
    (call,) = taken(member, 0.0)
    waits, now = [], 0.0
    for _ in range(7):
        member.machine.end(call, down, now)
        breaker = member.machine.breaker.breaker
        assert breaker is not None
        due = breaker.next_due(now)
        waits.append(due - now)
        now = due
        (call,) = taken(member, now)
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(0.9)
    assert waits[-1] == pytest.approx(27.0)
    assert call.attempts == 1


def other(seconds: float, *, index: int) -> CallsHeld:
    member = NativeMember()
    member.join(index=index)
    me = member.machine.roster.me
    assert me is not None
    return CallsHeld(Identity(me.index, me.name, "other"), seconds, "down there")


def test_the_other_members_hold_their_calls_too_until_one_has_succeeded() -> None:
    member = holding(index=1)
    member.machine.message(other(10.0, index=0), 1.0)
    assert taken(member, 11.0) == []
    member.machine.message(other(30.0, index=0), 11.0)
    assert taken(member, 30.0) == []
    member.machine.message(other(0.0, index=0), 31.0)
    assert len(taken(member, 31.0)) == 1
    assert reports(member) == []


def test_a_member_tries_itself_where_the_one_that_was_to_reports_nothing() -> None:
    member = holding(index=1)
    member.machine.message(other(10.0, index=0), 1.0)
    assert taken(member, 15.9) == []
    assert len(taken(member, 16.0)) == 1


def test_of_two_that_report_the_lower_index_tries() -> None:
    lower, _ = opened()
    lower.machine.message(other(60.0, index=3), 1.1)
    for call in list(lower.machine.dispatcher.running):
        lower.machine.end(call, DOWN, 1.2)
    assert len(taken(lower, 11.0)) == 1
    higher = holding(index=1)
    calls = taken(higher, 1.0)
    for call in calls:
        higher.machine.end(call, DOWN, 1.0)
    higher.machine.message(other(60.0, index=0), 1.1)
    assert taken(higher, 11.0) == []
    assert len(taken(higher, 66.2)) == 1


def test_a_group_that_never_fails_as_a_whole_has_no_breaker() -> None:
    member = holding()
    for call in taken(member, 0.0):
        member.machine.end(call, ACK, 0.1)
    assert member.machine.breaker.breaker is None


def test_it_is_a_problem_with_its_reason() -> None:
    member, _ = opened()
    beat = member.machine.content()
    assert beat.held == HeldCalls("the database is down", 1_000_000, 11_000_000)
    (problem,) = member_problems(Names("g"), [beat], is_one_queue=True, is_paused=None, has_parking=False)
    assert "holds the calls of the group since" in text_of(problem)
    assert "the database is down" in text_of(problem)


def test_another_scope_is_refused() -> None:
    with pytest.raises(ValueError, match="the scope is 'all', not message or group"):
        retry("down", scope="all")  # type: ignore[arg-type]  # what is refused


async def test_two_members_wait_together_until_a_dependency_is_back(place: Place, load: Load) -> None:
    called: list[tuple[str, int]] = []
    is_down = True

    def app(name: str) -> AsyncHandler:
        async def handle(message: Message) -> Verdict | None:
            called.append((name, message.attempt))
            return retry("the database is down", scope="group", after_s=0.5) if is_down else None

        return handle

    settings = {"concurrency": 2, "max_attempts": 2}
    async with (
        Member(place.settings("a", **settings), app("a")) as a,
        Member(place.settings("b", **settings), app("b")) as b,
    ):
        await until(lambda: a.state()["live"] == b.state()["live"] == [0, 1])
        await load.publish(40)
        await until(lambda: len(called) > 8)
        is_down = False
        await until(lambda: sum(one.state()["counts"]["acked"] for one in (a, b)) == 40)
        assert {attempt for _, attempt in called} == {1}
        assert a.state()["counts"]["poisoned"] == b.state()["counts"]["poisoned"] == 0
