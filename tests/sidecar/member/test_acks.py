"""Acks of a member over a real broker."""

from __future__ import annotations

import asyncio

import pytest

from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, Message
from lbg_sidecar.core import acks
from lbg_sidecar.core.effects import Done, Effect
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
