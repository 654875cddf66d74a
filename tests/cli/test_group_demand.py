"""`lbg group show --target-delay`: the number of members that a group needs, by what its members measure."""

from __future__ import annotations

import asyncio
import json

import pytest

from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message
from testing.command_line import Lbg, Where

CALL_S = 0.05


@pytest.mark.process
def test_a_backlog_needs_more_members_than_there_are(lbg: Lbg, broker: Where, unique: str) -> None:
    made = lbg("group", "create", unique, "--queue-count", "8", "--no-user", *broker.options)
    assert made.status == 0, made.err

    async def handle(message: Message) -> None:
        await asyncio.sleep(CALL_S)

    async def run() -> None:
        async with GroupPublisher(broker.broker, group=unique) as publisher:
            for number in range(4000):
                await publisher.publish(key=f"key-{number}", body=b"", topic="t")
        async with Member(MemberSettings(broker=broker.broker, group=unique, concurrency=1), handle):
            show = ("group", "show", unique, "--target-delay", "10", *broker.options)
            text = await asyncio.to_thread(lbg, *show)
            assert "members for a delay of 10 s" in text.out, text
            document = await asyncio.to_thread(lbg, *show, "--json")
            demand = json.loads(document.out)["demand"]
        assert demand["service_s"] >= CALL_S
        assert demand["member_processes_per_s"] <= 1 / CALL_S
        assert demand["why"] == "Backlog"
        assert demand["members_wanted"] > 1
        assert demand["waiting"] > 3000

    asyncio.run(run())


@pytest.mark.process
def test_a_group_without_members_has_an_unknown_demand_and_not_none(
    lbg: Lbg, broker: Where, group: str
) -> None:
    shown = lbg("group", "show", group, "--target-delay", "10", "--json", *broker.options)
    assert shown.status == 0, shown.err
    assert json.loads(shown.out)["demand"]["members_wanted"] is None


def test_a_demand_is_measured_once(lbg: Lbg) -> None:
    refused = lbg("group", "show", "orders", "--watch", "--target-delay", "10")
    assert refused.status == 2
    assert "leave out --watch" in refused.err
