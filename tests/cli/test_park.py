"""`lbg park` on a broker, with members that fail on a key and are repaired."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from lbg_core.admin import connect_admin
from lbg_core.admin.dead_letters import Selection
from lbg_core.admin.parked_messages import NoParking, NotParked, open_parked_stream
from lbg_core.client import ConnectionSettings
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message, Verdict, retry
from lbgroup.parked import LISTED
from testing.command_line import Lbg, Where
from testing.waiting import GUARD_S, until


class App:
    """Fails on messages with these bodies."""

    def __init__(self, *failing: bytes) -> None:
        self.failing = set(failing)
        self.done: list[tuple[str | None, bytes]] = []

    async def __call__(self, message: Message) -> Verdict | None:
        if message.data in self.failing:
            return retry("no such account")
        self.done.append((message.key, message.data))
        return None


def settings(broker: Where, group: str) -> MemberSettings:
    return MemberSettings(
        broker=broker.broker,
        group=group,
        name="m",
        rebalance_delay_s=0.2,
        max_attempts=2,
        retry_first_s=0.02,
        when_exhausted="park",
    )


async def publish(broker: Where, group: str, key: str, *bodies: bytes) -> None:
    async with GroupPublisher(broker.broker, group=group) as publisher:
        for body in bodies:
            await publisher.publish(key=key, body=body, topic="t")


def test_keys_are_listed_tried_released_and_discarded_while_a_member_runs(
    lbg: Lbg, broker: Where, group: str, tmp_path: Path
) -> None:
    app = App(b"a1", b"b0")
    at = ("--broker", broker.broker)

    async def park(*arguments: str, code: int = 0) -> str:
        done = await asyncio.to_thread(lbg, "park", *arguments, *at)
        assert done.status == code, done.err
        return done.out if code == 0 else done.err

    async def run() -> None:
        assert "no parking queue" in await park("list", group, code=1)
        assert "declare queue" in await park("enable", group, "--management", broker.management)
        async with Member(settings(broker, group), app) as member:
            await publish(broker, group, "a", b"a0", b"a1", b"a2", b"a3")
            await publish(broker, group, "b", b"b0", b"b1")
            await until(lambda: member.state()["counts"]["parked"] == 5)
            listed = json.loads(await park("list", group, "--output", "json"))
            assert {one["key"]: (one["state"], one["messages"]) for one in listed["keys"]} == {
                "a": ("parked", 3),
                "b": ("parked", 2),
            }
            assert listed["leftovers"] == 0
            assert {one["reason"] for one in listed["keys"]} == {"no such account"}
            assert all(0 <= one["age_s"] < GUARD_S for one in listed["keys"])
            header, *rows = (await park("list", group)).splitlines()
            assert header.split() == list(LISTED)
            assert [row.split()[0] for row in rows] == [one["key"] for one in listed["keys"]]
            assert all(row.endswith("  no such account") for row in rows)
            assert "no such account" in await park("show", group, "a")
            shown = await asyncio.to_thread(lbg, "group", "show", group, *broker.options)
            assert "! 5 messages of 2 keys are parked, the oldest published 20" in shown.out
            shown = await asyncio.to_thread(lbg, "group", "show", group, *broker.options, "--output", "json")
            assert json.loads(shown.out)["parked"] == 5

            assert "parked again" in await park("release", group, "--key", "a", code=1)
            app.failing.clear()
            await park("replay-one", group, "a")
            await until(lambda: ("a", b"a1") in app.done)
            assert "1 key of group" in await park("release", group, "--key", "a")
            assert "not parked" in await park("release", group, "--key", "a", code=1)

            saved = tmp_path / "saved.jsonl"
            out = await park("discard", group, "--key", "b", "--save", str(saved), "--yes")
            assert "2 parked messages" in out
            assert [json.loads(line)["body"] for line in saved.read_text().splitlines()] == ["b0", "b1"]
            await asyncio.sleep(0.5)
            await publish(broker, group, "b", b"b2")
            await until(lambda: ("b", b"b2") in app.done)

    asyncio.run(run())
    assert [body for key, body in app.done if key == "a"] == [b"a0", b"a1", b"a2", b"a3"]
    assert [body for key, body in app.done if key == "b"] == [b"b2"]


async def test_a_program_lists_tries_releases_and_discards_parked_keys(
    broker: Where, group: str, tmp_path: Path
) -> None:
    app = App(b"a0", b"b0")
    async with connect_admin(broker.broker, broker.management) as admin:
        with pytest.raises(NoParking):
            await admin.list_parked(group)
        assert await admin.enable_parking(group)
        assert not await admin.enable_parking(group)
        async with Member(settings(broker, group), app) as member:
            await publish(broker, group, "a", b"a0", b"a1", b"a2")
            await publish(broker, group, "b", b"b0", b"b1")
            await until(lambda: member.state()["counts"]["parked"] == 5)
            listing = await admin.list_parked(group)
            assert {one.key: one.messages for one in listing.keys} == {"a": 3, "b": 2}
            assert (listing.messages, listing.size_bytes) == (5, 10)
            assert listing.reasons == dict.fromkeys("ab", "no such account")
            places = [ConnectionSettings.parse(broker.broker)]
            async with open_parked_stream(places, group, is_locked=True):
                assert (await admin.list_parked(group)).reasons == {}, "a release may read the messages"
            (first, _) = await admin.show_parked(group, "a", limit=2)
            assert first.reason == "no such account"
            with pytest.raises(NotParked, match=f"not parked in group {group}: c"):
                await admin.release_parked(group, ["a", "c"])
            with pytest.raises(NotParked):
                await admin.replay_parked(group, "c")

            assert (await admin.release_parked(group, ["a"], timeout_s=GUARD_S)).failed_again == {"a"}
            app.failing.clear()
            assert await admin.replay_parked(group, "a") == first.id
            await until(lambda: ("a", b"a0") in app.done)
            assert (await admin.release_parked(group, None, timeout_s=GUARD_S)).done == {"a", "b"}
            assert [body for key, body in app.done if key == "a"] == [b"a0", b"a1", b"a2"]
            assert [body for key, body in app.done if key == "b"] == [b"b0", b"b1"]

            app.failing.add(b"b2")
            before = member.state()["counts"]["parked"]
            await publish(broker, group, "b", b"b2", b"b3")
            await until(lambda: member.state()["counts"]["parked"] == before + 2)
            with (tmp_path / "saved.jsonl").open("w") as saved:
                assert await admin.discard_parked(group, Selection(key="b"), save=saved) == 2
            assert len((tmp_path / "saved.jsonl").read_text().splitlines()) == 2
            assert not (await admin.list_parked(group)).keys
