"""Messages that never succeed: what they hold up, what is told of them, and what lets the rest go on."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lbg_core.client.backoff import Backoff
from lbg_core.group.held_messages import HeldState
from lbg_core.group.member_state import Identity, Progress
from lbg_core.group.members_protocol import Peek, Skip, SkipOutcome, Skipped
from lbg_sidecar.core.delivery import Attachment, InFlight, Outcome, Processed
from lbg_sidecar.core.dispatcher import Dispatcher, Rules, WhenExhausted
from lbg_sidecar.core.effects import CallFailed, DeadLetter, Failure, Show
from lbg_sidecar.core.message_states import Hold
from lbg_sidecar.core.status_report import LISTED_MAX
from lbg_sidecar.message import ACK, retry
from testing.exploration import over_seeds
from testing.member.world import Item, SimMember, World

PREFETCH = 8
BACKOFF = Backoff(first_s=0.1, max_s=10.0, jitter=0.0)
BLOCK = Rules(concurrency=4, max_attempts=3, backoff=BACKOFF)
DEAD_LETTER = Rules(concurrency=4, max_attempts=3, backoff=BACKOFF, when_exhausted=WhenExhausted.DEAD_LETTER)


def alone(rules: Rules = BLOCK, *, prefetch: int = PREFETCH) -> tuple[World, SimMember]:
    """One member, two queues; every message of the key `bad` fails."""
    world = World(3, queue_count=2, hash_count=2, rules=rules, balancing={"prefetch": prefetch})
    member = world.join()
    world.run(1)
    world.failing = {"bad"}
    return world, member


def publish(world: World, *keys: str, hash_: int = 0) -> list[Item]:
    return [world.publish(key, hash_=hash_) for key in keys]


def are_done(world: World, items: list[Item]) -> bool:
    return all(world.finished[item.identity] == 1 for item in items)


def poisoned(world: World) -> list[CallFailed]:
    calls = [event for _, _, event in world.events if isinstance(event, CallFailed)]
    return [call for call in calls if call.kind is Failure.POISONED]


def progress(member: SimMember) -> list[Progress]:
    return [state.progress for state in member.machine.content().queues]


def fine(world: World) -> None:
    world.calm = True
    world.run(15)
    assert not world.violations
    assert not world.unfinished()


def test_block_holds_up_the_key_then_its_queue_once_the_window_is_full_of_it_and_never_another_queue() -> (
    None
):
    world, member = alone()
    publish(world, *["bad"] * (PREFETCH - 1))
    beside = publish(world, *(f"good{number}" for number in range(50)))
    world.run(30)
    assert are_done(world, beside), "one place of the window is free: other keys go on"
    assert progress(member)[0] is not Progress.STALLED

    publish(world, "bad")
    behind = publish(world, *(f"good{number}" for number in range(10)))
    elsewhere = publish(world, *(f"other{number}" for number in range(50)), hash_=1)
    world.run(30)
    assert not any(world.finished[item.identity] for item in behind), "the window is full of the key"
    assert progress(member) == [Progress.BLOCKED, Progress.IDLE]
    assert are_done(world, elsewhere), "other queues do not notice"
    fine(world)


def test_a_poisoned_message_is_told_once_and_then_tried_at_the_longest_interval() -> None:
    world, member = alone()
    publish(world, "bad", "bad")
    world.run(2)
    (told,) = poisoned(world)
    assert (told.queue, told.key, told.attempts, told.reason) == (0, "bad", 3, "it is poison")
    retried = member.machine.dispatcher.counts.retried
    assert retried == 3
    world.run(40)
    assert member.machine.dispatcher.counts.retried - retried == 4
    assert len(poisoned(world)) == 1
    fine(world)


def test_each_failed_call_is_reported_with_its_attempt_and_the_last_as_a_dead_letter() -> None:
    world, _ = alone(DEAD_LETTER)
    (item,) = publish(world, "bad")
    world.run(5)
    failures = [event for _, _, event in world.events if isinstance(event, CallFailed)]
    assert [(one.kind, one.key, one.identity, one.attempts, one.reason) for one in failures] == [
        (Failure.RETRIED, "bad", item.identity, 1, "it is poison"),
        (Failure.RETRIED, "bad", item.identity, 2, "it is poison"),
        (Failure.REFUSED, "bad", item.identity, 3, "gave up after 3 attempts: it is poison"),
    ]


@pytest.mark.parametrize(
    ("asked_s", "waits_s"),
    [(0.01, 10.0), (3600.0, 3600.0), (None, 10.0), (1e9, 86_400.0), (math.inf, 86_400.0)],
)
def test_a_poisoned_message_waits_as_the_application_asks_for_the_longest_interval_at_least_and_a_day_at_most(
    asked_s: float | None, waits_s: float
) -> None:
    dispatcher = Dispatcher(BLOCK, Processed(queue_count=1), lambda: 0.5)
    attachment = Attachment(0, 1, prefetch=PREFETCH)
    dispatcher.deliver(attachment, [InFlight(attachment, 1, key="bad", identity=("p", 0, 0))], 0.0)
    now = 0.0
    for _ in range(BLOCK.max_attempts):
        held = dispatcher.take(now)
        assert held is not None
        dispatcher.end(held, retry("it is poison", after_s=asked_s), now)
        due = dispatcher.lanes.next_due()
        assert due is not None
        waited_s, now = due - now, due
        dispatcher.lanes.wake(now)
    assert waited_s == waits_s


def test_a_member_tells_which_messages_are_poisoned_until_they_succeed() -> None:
    world, member = alone()
    (item, _) = publish(world, "bad", "bad")
    world.run(5)
    told = member.machine.describe(world.now)["queues"][0]
    (message,) = told["poisoned_messages"]
    assert message["id"] == "-".join(map(str, item.identity))
    assert (message["key"], message["attempts"], message["reason"]) == ("bad", 3, "it is poison")
    assert 3 < message["since_s"] < 5
    assert (told["poisoned"], told["poisoned_keys"]) == (1, ("bad",))
    fine(world)
    told = member.machine.describe(world.now)["queues"][0]
    assert (told["poisoned"], told["poisoned_keys"], told["poisoned_messages"]) == (0, (), [])


def test_the_list_of_poisoned_messages_is_bounded_and_their_number_is_not() -> None:
    world, member = alone(prefetch=40)
    keys = [f"bad{number}" for number in range(30)]
    world.failing = set(keys)
    publish(world, *keys)
    world.run(5)
    told = member.machine.describe(world.now)["queues"][0]
    assert told["poisoned"] == 30
    assert len(told["poisoned_messages"]) == LISTED_MAX
    assert list(told["poisoned_keys"]) == [one["key"] for one in told["poisoned_messages"]][:3]
    fine(world)


def test_who_takes_over_a_poisoned_message_knows_it_after_one_attempt() -> None:
    world, first = alone()
    publish(world, "bad")
    world.run(2)
    second = world.join()
    world.run(1)
    first.stop()
    world.run(8)
    assert first.exited
    (_, told) = poisoned(world)
    assert told.attempts == 4
    assert second.machine.dispatcher.counts.poisoned == 1
    fine(world)


def test_dead_letter_lets_the_key_go_on() -> None:
    world, member = alone(DEAD_LETTER)
    items = publish(world, *["bad"] * 3)
    world.run(3)
    assert [world.dead[item.identity] for item in items] == [1, 1, 1]
    assert member.machine.dispatcher.counts.dead_lettered == 3
    assert not poisoned(world)
    fine(world)


def test_a_peek_is_answered_with_what_is_held_in_order_and_its_states() -> None:
    world, member = alone()
    publish(world, "bad", "bad", "good")
    world.run(2)
    machine = member.machine

    def shown(**wanted: Any) -> list[tuple[str | None, HeldState]]:
        fields: dict[str, Any] = {"queue": None, "id": None, "limit": 9, "body_bytes": 1}
        machine.requests.receive(Peek(Identity(0, "", ""), "a", **fields | wanted), "g", 0.0)
        (effect,) = [one for one in machine.effects if isinstance(one, Show)]
        machine.effects.remove(effect)
        assert effect.held >= len(effect.shown)
        return [(one.key, state) for one, state in effect.shown]

    held = [("bad", HeldState.POISONED), ("bad", HeldState.WAITING)]
    assert shown() == held
    assert shown(limit=1) == held[:1]
    assert shown(queue=1) == []
    fine(world)


def skip(member: SimMember, id: str) -> None:
    member.receives(Skip(Identity(0, "", ""), "a", id))


def outcomes(world: World) -> list[SkipOutcome]:
    return [answer.outcome for answer in world.broker.answers if isinstance(answer, Skipped)]


def test_a_skipped_message_is_a_dead_letter_once_confirmed_and_its_key_goes_on() -> None:
    world, member = alone()
    (item, behind) = publish(world, "bad", "bad")
    world.run(2)
    (id_,) = member.machine.content().queues[0].poisoned_ids
    assert id_ == "-".join(map(str, item.identity))
    skip(member, id_)
    assert outcomes(world) == [], "the answer waits for the confirm"
    world.run(1)
    assert outcomes(world) == [SkipOutcome.DEAD_LETTER]
    assert (world.dead[item.identity], world.dead[behind.identity]) == (1, 0)
    assert member.machine.content().queues[0].poisoned == 1, "the next one of the key had its attempts"
    skip(member, "-".join(map(str, behind.identity)))
    world.run(1)
    assert world.dead[behind.identity] == 1
    assert (member.machine.dispatcher.counts.dead_lettered, world.unfinished()) == (2, [])
    fine(world)


def test_a_message_that_is_not_poisoned_or_not_here_is_not_skipped() -> None:
    world, member = alone()
    (_, behind) = publish(world, "bad", "bad")
    world.run(2)
    skip(member, "-".join(map(str, behind.identity)))
    skip(member, "p-9-9")
    world.run(1)
    assert outcomes(world) == [SkipOutcome.NOT_POISONED, SkipOutcome.NOT_HELD]
    assert not any(world.dead.values())
    fine(world)


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_poisoned_message_that_is_called_is_skipped_unless_the_call_succeeds(succeeds: bool) -> None:
    dispatcher = Dispatcher(BLOCK, Processed(queue_count=1), lambda: 0.5)
    attachment = Attachment(0, 1, prefetch=PREFETCH)
    first, second = (InFlight(attachment, tag, key="bad", identity=("p", 0, tag)) for tag in range(1, 3))
    dispatcher.deliver(attachment, [first, second], 0.0)
    now = 0.0
    for _ in range(BLOCK.max_attempts):
        assert dispatcher.take(now) is first
        dispatcher.end(first, retry("it is poison"), now)
        now += 100.0
        dispatcher.lanes.wake(now)
    assert dispatcher.take(now) is first
    dispatcher.skip(first)
    assert DeadLetter(first) not in dispatcher.effects
    if succeeds:
        dispatcher.end(first, ACK, now)
        assert first.outcome is Outcome.ACK
    else:
        dispatcher.end(first, retry("still poison"), now)
        assert DeadLetter(first) in dispatcher.effects
        assert first.reason == "skipped by an administrator after 4 attempts: still poison"
        assert dispatcher.take(now) is None, "the key waits for the confirm"
        dispatcher.confirmed(first)
        assert first.outcome is Outcome.DEAD
    assert dispatcher.take(now) is second
    assert not attachment.poisoned


@pytest.mark.parametrize("place", ["delayed", "ready", "shelved"])
def test_a_poisoned_message_is_skipped_wherever_it_waits_and_called_no_more(place: str) -> None:
    dispatcher = Dispatcher(BLOCK, Processed(queue_count=1), lambda: 0.5)
    attachment = Attachment(0, 1, prefetch=PREFETCH)
    first, second = (InFlight(attachment, tag, key="bad", identity=("p", 0, tag)) for tag in range(1, 3))
    dispatcher.deliver(attachment, [first, second], 0.0)
    for now in (0.0, 100.0, 200.0):
        dispatcher.lanes.wake(now)
        assert dispatcher.take(now) is first
        dispatcher.end(first, retry("it is poison"), now)
    if place != "delayed":
        dispatcher.lanes.wake(300.0)
    if place == "shelved":
        dispatcher.lanes.hold(attachment, Hold.HALT)
    dispatcher.skip(first)
    assert DeadLetter(first) in dispatcher.effects
    assert not attachment.drained
    dispatcher.lanes.wake(1000.0)
    assert dispatcher.take(1000.0) is None
    dispatcher.confirmed(first)
    if place == "shelved":
        assert attachment.drained
        dispatcher.lanes.let_go(attachment, Hold.HALT)
    assert dispatcher.take(1000.0) is second


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.1])
@over_seeds(5)
def test_a_member_that_is_killed_while_it_skips_a_message_loses_none(seed: int, after_s: float) -> None:
    world = World(seed, queue_count=2, hash_count=2, rules=BLOCK, balancing={"prefetch": PREFETCH})
    member = world.join()
    world.run(1)
    world.failing = {"bad"}
    (item, behind) = publish(world, "bad", "bad")
    world.run(2)
    skip(member, "-".join(map(str, item.identity)))
    world.run(after_s)
    world.kill(member)
    second = world.join()
    world.run(8)
    if not world.dead[item.identity]:
        assert second.machine.dispatcher.counts.poisoned, "it is in its place"
    world.calm = True
    world.run(15)
    assert not world.violations
    assert world.dead[item.identity] + world.finished[item.identity] >= 1
    assert world.finished[behind.identity] == 1
    assert not world.unfinished()


def test_a_message_is_skipped_during_a_handoff_by_one_of_the_two_or_by_neither() -> None:
    for after_s in (0.0, 0.01, 0.05, 0.2, 1.0):
        world, first = alone()
        (item,) = publish(world, "bad")
        world.run(2)
        second = world.join()
        world.run(0.2)
        first.stop()
        world.run(after_s)
        for member in world.up():
            skip(member, "-".join(map(str, item.identity)))
        world.run(8)
        assert first.exited
        assert world.dead[item.identity] or second.machine.dispatcher.counts.poisoned == 1
        fine(world)


def test_a_poisoned_message_blocks_its_queue_also_while_the_group_is_paused_and_its_handoff_never() -> None:
    world, member = alone()
    world.failing = {"bad", "worse"}
    publish(world, "bad")
    publish(world, "worse", hash_=1)
    world.run(30)
    assert progress(member) == [Progress.BLOCKED] * 2
    member.driver.pause(True)
    world.run(30)
    assert progress(member) == [Progress.BLOCKED] * 2
    second = world.join()
    second.driver.pause(True)
    world.run(6)
    assert set(world.served_by().values()) == {0, 1}
    for one in (member, second):
        one.driver.pause(False)
    fine(world)


def test_queues_move_while_the_group_is_paused_and_nothing_is_called_or_repeated() -> None:
    world = World(3, queue_count=4, hash_count=8, rules=BLOCK, balancing={"prefetch": PREFETCH})
    first = world.join()
    world.run(1)
    for number in range(40):
        world.publish(f"k{number % 8}")
    world.run(0.005)
    first.driver.pause(True)
    world.run(1)
    done = sum(world.finished.values())
    second = world.join()
    second.driver.pause(True)
    world.run(25)
    assert sum(world.finished.values()) == done < 40
    assert set(world.served_by().values()) == {0, 1}, "queues are handed over"
    for member in (first, second):
        assert member.machine.content().paused
        member.driver.pause(False)
    fine(world)
    assert world.repeats == 0
