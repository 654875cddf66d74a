"""Calls for which the application asks for more time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_core.admin.member_problems import member_problems
from lbg_core.admin.problems import text_of
from lbg_core.group import Names
from lbg_core.group.member_state import ExtendedCall
from lbg_sidecar import Member, MemberSettings, Message
from lbg_sidecar.core.delivery import Extended, InFlight
from lbg_sidecar.core.dispatcher import Rules
from lbg_sidecar.core.effects import Abort, CallFailed, Failure
from lbg_sidecar.core.exclusive import ExclusiveMember
from lbg_sidecar.core.member_core import MemberCore
from lbg_sidecar.core.queue_bindings import BalancingRules
from lbg_sidecar.message import ACK, INTERRUPTED, retry
from testing.app.application_channel import delivered
from testing.exploration import example_count
from testing.member.bare_member import setup_of
from testing.member.group_load import Load
from testing.member.place import Place
from testing.waiting import until

RULES = Rules(call_timeout_s=30.0)
BALANCING = BalancingRules(queue_count=1, consumer_timeout_s=1000.0)


def called(now: float = 0.0, *, delivered_at: float = 0.0) -> tuple[MemberCore, InFlight]:
    """A member, and the message with which it calls its application."""
    machine = ExclusiveMember(setup_of(BALANCING, RULES))
    machine.connected(0, 0.0)
    machine.tick(0.0)
    (binding,) = machine.bindings.bound.values()
    assert binding.attachment is not None
    machine.attached(binding.attachment, 0.0)
    held = delivered(0, attachment=binding.attachment)
    machine.deliver(binding.attachment, [held], delivered_at)
    assert machine.take(now) is held
    machine.effects.clear()
    return machine, held


def aborted(machine: MemberCore, now: float) -> bool:
    """True if its call is aborted at that time."""
    machine.effects.clear()
    machine.dispatcher.tick(now)
    return any(isinstance(effect, Abort) for effect in machine.effects)


def test_an_extended_call_lasts_as_long_as_it_asked_for() -> None:
    machine, held = called()
    assert machine.extend(held, 60, 20.0) == 60
    assert not aborted(machine, 79.9)
    assert aborted(machine, 80.0)
    assert held.abort_reason == "no verdict within 80 s"


def test_no_call_is_shortened() -> None:
    machine, held = called()
    assert machine.extend(held, 1, 5.0) == 25
    machine.extend(held, 100, 5.0)
    assert machine.extend(held, 1, 6.0) == 99


def test_no_call_lasts_beyond_half_of_the_consumer_timeout_after_its_delivery() -> None:
    machine, held = called(100.0)
    assert machine.extend(held, 3600, 110.0) == 390
    assert aborted(machine, 500.0)


def test_a_call_that_does_not_count_any_more_has_no_time_left() -> None:
    machine, held = called()
    assert aborted(machine, 30.0)
    assert machine.extend(held, 60, 31.0) == 0
    machine.end(held, INTERRUPTED, 32.0)
    assert machine.extend(held, 60, 33.0) == 0


def test_the_next_attempt_has_the_usual_time() -> None:
    machine, held = called()
    machine.extend(held, 60, 0.0, "half")
    machine.end(held, retry("busy", after_s=0), 50.0)
    machine.dispatcher.tick(50.0)
    assert machine.take(50.0) is held
    assert held.extended is None
    assert not aborted(machine, 79.9)
    assert aborted(machine, 80.0)


def test_progress_stays_until_there_is_another() -> None:
    machine, held = called()
    machine.extend(held, 60, 0.0, "half")
    machine.extend(held, 60, 1.0)
    assert held.extended == Extended(61.0, "half")


def test_a_call_is_reported_as_slow_once() -> None:
    machine, held = called()
    machine.extend(held, 200, 0.0)
    reports = []
    for second in range(0, 200, 5):
        machine.dispatcher.tick(float(second))
        reports += [effect for effect in machine.effects if isinstance(effect, CallFailed)]
        machine.effects.clear()
    assert [report.kind for report in reports] == [Failure.SLOW]


def test_a_handoff_waits_for_as_long_as_an_extended_call_may_last() -> None:
    machine, held = called()
    assert isinstance(machine, ExclusiveMember)
    assert machine.dispatcher.longest_call_s == 30
    machine.extend(held, 400, 0.0)
    assert machine.dispatcher.longest_call_s == 400
    machine.end(held, ACK, 1.0)
    assert machine.dispatcher.longest_call_s == 30


@settings(max_examples=example_count(100))
@given(st.lists(st.tuples(st.floats(0.1, 100.0), st.floats(0.1, 700.0)), max_size=6))
def test_a_call_is_aborted_when_the_longest_of_its_extensions_ends(steps: list[tuple[float, float]]) -> None:
    machine, held = called()
    now, ends = 0.0, 30.0
    for wait_s, seconds in steps:
        if now + wait_s >= ends:
            break
        now += wait_s
        ends = max(ends, min(now + seconds, 500.0))
        assert machine.extend(held, seconds, now) == pytest.approx(ends - now)
    assert not aborted(machine, ends - 0.001)
    machine.dispatcher.tick(ends - 0.001)
    assert machine.dispatcher.next_due == pytest.approx(ends)
    assert aborted(machine, ends + 0.001)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 86_401, True, "60", None])
def test_what_is_no_number_of_seconds_is_refused(seconds: Any) -> None:
    with pytest.raises(ValueError, match=r"not a number above 0 and up to 86400$"):
        Message(delivered(0), "g").extend(seconds)


def test_an_extended_call_is_a_note_of_its_group() -> None:
    machine, held = called()
    machine.extend(held, 60, 0.0, "3 of 7 parts")
    assert held.extended is not None
    held.extended.since_us, held.extended.until_us = 1_000_000, 61_000_000
    (queue,) = machine.content().queues
    assert queue.extended_calls == (ExtendedCall("p-5-0", "k", "3 of 7 parts", 1_000_000, 61_000_000),)
    (problem,) = member_problems(
        Names("g"), [machine.content()], is_one_queue=False, is_paused=None, has_parking=False
    )
    assert "3 of 7 parts" in text_of(problem)
    assert "p-5-0" in text_of(problem)


async def test_a_call_that_works_longer_than_the_timeout_is_made_once(place: Place, load: Load) -> None:
    """From a coroutine, whose call is aborted otherwise, and its progress is where its group is shown."""
    attempts: list[int] = []
    gate = asyncio.Event()

    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        assert message.extend(3600, "loading") > 100
        await gate.wait()

    config: MemberSettings = place.settings("a", call_timeout_s=1.0)
    async with Member(config, handle) as member:
        await load.publish(1)
        await until(lambda: attempts)
        await asyncio.sleep(1.5)
        calls = [call for queue in member.state()["queues"] for call in queue["extended_calls"]]
        assert [call["progress"] for call in calls] == ["loading"]
        assert member.extend(calls[0]["id"], 3600, "nearly") is not None
        assert member.extend("nobody", 60) is None
        gate.set()
        await until(lambda: member.state()["counts"]["acked"] == 1)
        assert member.state()["counts"]["timed_out"] == 0
    assert attempts == [1]


async def test_a_handler_in_a_thread_extends_its_call(place: Place, load: Load) -> None:
    left: list[float] = []

    def handle(message: Message) -> None:
        left.append(message.extend(3600))

    async with Member(place.settings("a"), handle):
        await load.publish(1)
        await until(lambda: left)
    assert left[0] > 100
