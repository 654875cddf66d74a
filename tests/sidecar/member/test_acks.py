"""Acks of a member: when they are due, and over a real broker."""

from __future__ import annotations

import asyncio

import pytest

from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, Message
from lbg_sidecar.core import acks
from lbg_sidecar.core.acks import ACK_INTERVAL_MAX_S, ACK_INTERVAL_S, ACK_MESSAGES, AckScheduler, Unacked
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.effects import Ack, Done, Effect
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.member.group_load import group_spec
from testing.member.place import Place
from testing.waiting import until

NEVER_S = 3600.0


async def test_a_gap_that_closes_is_acknowledged_at_once(
    embedded: EmbeddedBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages done behind a slow call are acknowledged after `SINGLE_ACK_AFTER_S`.
    They do not wait longer than for that call."""
    monkeypatch.setattr(acks, "SINGLE_ACK_AFTER_S", NEVER_S)
    spec = group_spec(unique, queues=1)
    await declare_group(embedded.url, spec)
    goes_on = asyncio.Event()
    done: list[str | None] = []
    acked: list[str | None] = []

    async def handle(message: Message) -> None:
        if message.key == "slow":
            await goes_on.wait()
        done.append(message.key)

    def observe(effect: Effect) -> None:
        if isinstance(effect, Done) and effect.settled:
            acked.extend(held.key for held in effect.deliveries)

    settings = Place("embedded", embedded.url, spec).settings("a")
    async with (
        GroupPublisher(embedded.url, group=spec.name) as publisher,
        Member(settings, handle, observer=observe),
    ):
        await publisher.publish(key="slow", body=b"", topic="load")
        await publisher.publish(key="quick", body=b"", topic="load")
        await until(lambda: done == ["quick"])
        await asyncio.sleep(0.05)  # the member looks, and puts the ack of the quick one off
        assert acked == []
        goes_on.set()
        await until(lambda: acked == ["slow", "quick"])


async def test_a_small_window_does_not_wait_for_the_ack_interval(
    embedded: EmbeddedBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acks, "ACK_INTERVAL_MAX_S", NEVER_S)
    spec = group_spec(unique, queues=1)
    await declare_group(embedded.url, spec)
    done: list[str | None] = []

    async def handle(message: Message) -> None:
        done.append(message.key)

    settings = Place("embedded", embedded.url, spec).settings("a", prefetch=1)
    async with GroupPublisher(embedded.url, group=spec.name) as publisher, Member(settings, handle):
        keys = [f"k{number}" for number in range(40)]
        for key in keys:
            await publisher.publish(key=key, body=b"", topic="load")
        await until(lambda: done == keys)


class Acks:
    """Acks of one queue whose messages are done one after the other."""

    def __init__(self, *, prefetch: int = 256) -> None:
        self.attachment = Attachment(0, 1, prefetch=prefetch)
        self.unacked = Unacked()
        self.effects: list[Effect] = []
        self._scheduler = AckScheduler(self.unacked, self.effects, frames_are_lost=False)
        self._tags = 0

    def done(self, count: int) -> None:
        for _ in range(count):
            self._tags += 1
            in_flight = InFlight(self.attachment, self._tags)
            self.attachment.ack_window.delivered([in_flight])
            self.unacked.done(in_flight)

    def flush(self, now: float) -> tuple[float, list[int]]:
        """Time at which the next one is due, and the tags acknowledged."""
        del self.effects[:]
        due = self._scheduler.flush(now)
        return due, [effect.tag for effect in self.effects if isinstance(effect, Ack)]


def test_an_ack_waits_for_sixteen_messages_or_for_the_longest_interval() -> None:
    queue = Acks()
    queue.done(1)
    assert queue.flush(1.0)[1] == [1]  # it was quiet
    queue.done(ACK_MESSAGES - 1)
    assert queue.flush(1.0 + ACK_INTERVAL_S) == (1.0 + ACK_INTERVAL_MAX_S, [])
    queue.done(1)
    assert queue.flush(1.0 + ACK_INTERVAL_S)[1] == [1 + ACK_MESSAGES]
    queue.done(1)
    at = 1.0 + ACK_INTERVAL_S + ACK_INTERVAL_MAX_S
    assert queue.flush(at - 0.001) == (at, [])
    assert queue.flush(at)[1] == [2 + ACK_MESSAGES]


def test_a_queue_whose_interval_ends_soon_is_acknowledged_together_with_another() -> None:
    first, second = Acks(), Acks()
    scheduler = AckScheduler(first.unacked, first.effects, frames_are_lost=False)
    second.unacked = first.unacked

    def acknowledged(now: float) -> list[Attachment]:
        del first.effects[:]
        scheduler.flush(now)
        return [effect.attachment for effect in first.effects if isinstance(effect, Ack)]

    first.done(1)
    assert acknowledged(1.0) == [first.attachment]
    first.done(1)
    second.done(1)
    assert acknowledged(1.0 + ACK_INTERVAL_MAX_S / 4) == [second.attachment]
    second.done(1)
    assert acknowledged(1.0 + ACK_INTERVAL_MAX_S) == [first.attachment, second.attachment]


def test_messages_that_are_done_between_make_no_ack_due_but_the_sixteenth_and_a_quarter_of_the_window() -> (
    None
):
    def due_after(prefetch: int) -> list[int]:
        queue = Acks(prefetch=prefetch)
        found = []
        for count in range(1, 21):
            queue.done(1)
            if queue.unacked.is_due:
                found.append(count)
            queue.unacked.is_due = False
        return found

    assert due_after(256) == [1, ACK_MESSAGES]
    assert due_after(40) == [1, *range(10, 21)]


def test_what_is_done_behind_a_message_that_is_taken_away_is_due() -> None:
    queue = Acks()
    queue.done(1)
    queue.flush(1.0)
    first, second = (InFlight(queue.attachment, tag) for tag in (2, 3))
    queue.attachment.ack_window.delivered([first, second])
    queue.unacked.done(second)
    queue.flush(1.0)
    queue.unacked.forget(queue.attachment, (first,))
    assert queue.unacked.is_due
    assert queue.flush(2.0)[1] == [3]


def test_acks_that_somebody_waits_for_are_due_after_the_shortest_interval() -> None:
    queue = Acks()
    queue.attachment.acks_soon = True
    queue.done(1)
    queue.flush(1.0)
    queue.done(1)
    assert queue.flush(1.0)[0] == 1.0 + ACK_INTERVAL_S
