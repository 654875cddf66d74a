"""`lbg group pause` and `resume`: a state of the group's record that members follow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from lbg_core.admin import connect_admin
from lbg_core.admin.actions import WriteRecord
from lbg_core.admin.describe import Description
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.member_requests import pause_group
from lbg_core.admin.record import Record, kubernetes_owner
from lbg_core.client import ConnectionSettings
from lbg_core.publisher import GroupPublisher
from lbg_core.publisher.events import IngressPaused, PublisherEvent
from lbg_sidecar import Member, MemberSettings, Message
from lbg_sidecar.io.driver import Driver
from testing.command_line import Lbg, Said, Where
from testing.needs import repeated
from testing.waiting import until

KEYS = [f"k{number}" for number in range(10)]


async def publish(broker: Where, group: str, first: int, last: int) -> None:
    async with GroupPublisher(broker.broker, group=group) as publisher:
        for number in range(first, last):
            for key in KEYS:
                await publisher.publish(key=key, body=str(number).encode(), topic="t")


def settings(broker: Where, group: str, name: str) -> MemberSettings:
    return MemberSettings(broker=broker.broker, group=group, name=name, rebalance_delay_s=0.2)


@pytest.fixture(params=repeated(["Exclusive", "Partitioned", "MessageGroups"]))
def group(request: pytest.FixtureRequest, lbg: Lbg, broker: Where, unique: str) -> str:
    made = lbg("group", "create", unique, "--mode", request.param, "--no-user", *broker.options)
    if request.param == "MessageGroups" and made.status:
        assert "RabbitMQ" in made.err
        assert lbg("group", "create", unique, "--no-user", *broker.options).status == 0
    return unique


@pytest.mark.parametrize(
    "group",
    ["Exclusive", "Partitioned", pytest.param("MessageGroups", marks=pytest.mark.slow)],
    indirect=True,
)
def test_a_paused_group_keeps_its_queues_starts_nothing_and_goes_on_in_order(
    lbg: Lbg, broker: Where, group: str
) -> None:
    seen: dict[str | None, list[bytes]] = {}
    running: list[Message] = []
    release = asyncio.Event()

    async def handle(message: Message) -> None:
        running.append(message)
        await release.wait()
        seen.setdefault(message.key, []).append(message.data)

    async def said(*command: str) -> Said:
        return await asyncio.to_thread(lbg, *command, *broker.options)

    async def run() -> None:
        async with Member(settings(broker, group, "a"), handle) as first:
            await publish(broker, group, 0, 3)
            await until(lambda: len(running) == len(KEYS))
            paused = await said("group", "pause", group)
            assert (paused.status, paused.out) == (
                0,
                f"group {group} is paused: its members start no new call\n",
            )
            assert (await said("group", "pause", group)).status == 0
            release.set()
            await until(lambda: sum(map(len, seen.values())) == len(KEYS))
            first.drop_connection()
            await until(lambda: not first.state()["connected"])
            await until(lambda: bool(first.state()["connected"]))
            async with Member(settings(broker, group, "b"), handle) as second:
                await publish(broker, group, 3, 5)
                await until(lambda: second.state()["live"] == [0, 1] == first.state()["live"])
                shown = await said("group", "show", group)
                assert f"  paused: members start no new call until `lbg group resume {group}`" in shown.out
                described = json.loads((await said("group", "show", group, "--json")).out)
                assert (described["paused"], [one["paused"] for one in described["members"]]) == (
                    True,
                    [True, True],
                )
                assert not any("paused" in problem for problem in described["problems"])
                assert (first.state()["paused"], second.state()["paused"]) == (True, True)
                assert len(running) == len(KEYS), "no new call has started"

                resumed = await said("group", "resume", group)
                assert (resumed.status, resumed.out) == (0, f"group {group} is resumed\n")
                await until(lambda: sum(len(set(bodies)) for bodies in seen.values()) == 5 * len(KEYS))
        described = json.loads((await said("group", "show", group, "--json")).out)
        assert (described["paused"], described["ready"]) == (False, 0)

    asyncio.run(run())
    # The connection that was cut may have lost acknowledgements: what it had processed comes again.
    first_times = {key: list(dict.fromkeys(bodies)) for key, bodies in seen.items()}
    assert first_times == {key: [b"0", b"1", b"2", b"3", b"4"] for key in KEYS}


def test_a_member_that_does_not_know_the_request_is_named(
    lbg: Lbg, broker: Where, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Driver, "pause", lambda self, is_paused: None)
    monkeypatch.setitem(pause_group.__kwdefaults__, "within_s", 0.1)

    async def handle(message: Message) -> None:
        """Nothing is published."""

    async def run() -> tuple[Said, dict[str, Any]]:
        async with Member(settings(broker, group, "old"), handle):
            paused = await asyncio.to_thread(lbg, "group", "pause", group, "-o", "json", *broker.options)
            shown = await asyncio.to_thread(lbg, "group", "show", group, "--json", *broker.options)
        return paused, json.loads(shown.out)

    paused, shown = asyncio.run(run())
    assert paused.status == 1
    done = json.loads(paused.out)
    assert (done["consumption"], done["members_behind"]) == (True, ["old"])
    assert paused.last_line.startswith("lbg: error: old still consume: versions of LBG before this command")
    (problem,) = shown["problems"]
    assert problem["text"] == "old consume though the group is paused"
    assert problem["remedy"]["commands"] == [["lbg", "group", "pause", group]]


def test_the_pause_survives_changes_of_the_group_and_is_refused_for_one_of_kubernetes(
    lbg: Lbg, broker: Where, group: str
) -> None:
    assert lbg("group", "pause", group, *broker.options).status == 0
    assert lbg("group", "create", group, "--no-user", *broker.options).status in (0, 1)
    if (changed := lbg("group", "repartition", group, "--queues", "6", *broker.options)).status:
        assert "no partitions to count" in changed.err, changed.err
    assert json.loads(lbg("group", "show", group, "--json", *broker.options).out)["paused"] is True

    async def own() -> None:
        admin = LiveAdmin(ConnectionSettings.parse(broker.broker))
        record = (await admin.observe(group)).record
        assert isinstance(record, Record)
        owned = Record(record.text, kubernetes_owner("cluster", "object"), record.publishers, record.paused)
        await admin.perform(WriteRecord(group, owned))
        await admin.close()

    asyncio.run(own())
    refused = lbg("group", "resume", group, *broker.options)
    assert (refused.status, "has another owner" in refused.err) == (1, True)
    missing = lbg("group", "pause", f"{group}x", *broker.options)
    assert f"there is no group '{group}x'" in missing.last_line


def test_publishers_wait_while_ingress_is_paused_and_go_on_in_order(
    lbg: Lbg, broker: Where, group: str
) -> None:
    events: list[PublisherEvent] = []
    seen: dict[str | None, list[bytes]] = {}

    async def handle(message: Message) -> None:
        seen.setdefault(message.key, []).append(message.data)

    async def said(*command: str) -> Said:
        return await asyncio.to_thread(lbg, *command, *broker.options)

    async def run() -> None:
        async with (
            Member(settings(broker, group, "a"), handle),
            GroupPublisher(broker.broker, group=group, on_event=events.append) as publisher,
        ):
            numbers = iter(range(10**9))
            publishing = asyncio.ensure_future(_publish_until_ended(publisher, numbers))
            await until(lambda: publisher.confirmed_count > 50)
            paused = await said("group", "pause", group, "--ingress")
            assert (paused.status, paused.out) == (
                0,
                f"ingress of group {group} is paused: its publishers wait\n",
            )
            await until(lambda: IngressPaused(group) in events)
            confirmed = publisher.confirmed_count
            late = await said("publish", "--group", group, "--key", "key", "--stop-after", "1", __file__)
            assert late.status != 0
            shown = await said("group", "show", group)
            assert (
                f"  ingress paused: publishers wait until `lbg group resume {group} --ingress`" in shown.out
            )
            described = json.loads((await said("group", "show", group, "--json")).out)
            assert (described["ingress_paused"], described["paused"], described["problems"]) == (
                True,
                False,
                [],
            )
            assert publisher.confirmed_count == confirmed
            resumed = await said("group", "resume", group, "--ingress")
            assert (resumed.status, resumed.out) == (0, f"ingress of group {group} is resumed\n")
            await until(lambda: publisher.confirmed_count > confirmed + 50)
            publishing.cancel()
            await publisher.flush()
            await until(lambda: sum(len(set(one)) for one in seen.values()) == publisher.confirmed_count)

    asyncio.run(run())
    assert events.count(IngressPaused(group)) == 1
    for bodies in seen.values():
        first_times = list(dict.fromkeys(bodies))
        assert first_times == sorted(first_times, key=int)


async def _publish_until_ended(publisher: GroupPublisher, numbers: Iterator[int]) -> None:
    for number in numbers:
        await publisher.publish(key=f"k{number % 10}", body=str(number).encode(), topic="t")
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("group", ["Exclusive"], indirect=True)
def test_all_is_both_and_each_is_resumed_alone(lbg: Lbg, broker: Where, group: str) -> None:
    async def described() -> Description:
        async with connect_admin(broker.broker, broker.management) as admin:
            return await admin.show_group(group, listen_s=0.0)

    def states() -> tuple[bool | None, bool | None]:
        shown = asyncio.run(described())
        return shown.is_paused, shown.is_ingress_paused

    assert lbg("group", "pause", group, "--all", *broker.options).status == 0
    assert states() == (True, True)
    top = lbg("top", "--once", "--filter", group, *broker.options).out
    assert "paused, ingress paused" in top
    assert lbg("group", "resume", group, *broker.options).status == 0
    assert states() == (False, True)
    assert lbg("group", "pause", group, *broker.options).status == 0
    assert lbg("group", "resume", group, "--ingress", *broker.options).status == 0
    assert states() == (True, False)
    assert lbg("group", "resume", group, "--all", *broker.options).status == 0
    assert states() == (False, False)
