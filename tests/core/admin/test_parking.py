"""The parking queue of a group, on both engines."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lbg_core.admin import Busy, StillInUse, Unsupported
from lbg_core.admin.actions import DeleteQueue
from lbg_core.admin.describe import Description
from lbg_core.admin.group_reader import survey
from lbg_core.admin.groups import (
    create_group,
    delete_group,
    enable_parking,
    rotate_user,
    separate_publishers,
    show_group,
)
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi
from lbg_core.admin.parked_messages import open_parked_stream
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.record import read_record
from lbg_core.admin.repartition import repartition_group
from lbg_core.client import AccessRefused, Channel, ConfirmingPublisher, Delivery, connect
from lbg_core.group import (
    EMBEDDED,
    MESSAGE_GROUPS,
    PARTITIONED,
    RABBITMQ,
    SESSIONS,
    Engine,
    GroupSpec,
    Names,
    topology_of,
)
from lbg_core.group.topology import why_without_parking
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message, Verdict, retry
from testing.admin.place import Place
from testing.admin.problem_lines import problem_lines
from testing.waiting import GUARD_S, until, until_answer

NAMES = Names("orders")


async def has_parking(admin: LiveAdmin) -> bool:
    return (await admin.observe("orders")).has_parking


@pytest.mark.long
async def test_a_group_gets_its_parking_queue_once_and_loses_it_with_itself(
    admin: LiveAdmin, orders: GroupSpec
) -> None:
    await create_group(admin, orders, password="members")
    assert await enable_parking(admin, "orders")
    assert not await enable_parking(admin, "orders")
    assert not (await create_group(admin, orders, password="members")).changes
    shown = await show_group(admin, "orders")
    assert not shown.problems
    surveyed = (await survey(admin, {"orders": orders}))["orders"]
    assert isinstance(surveyed, Description)
    assert not surveyed.problems

    await delete_group(admin, "orders")
    observed = await admin.observe("orders")
    assert observed.is_empty


async def test_a_user_that_was_not_made_for_the_group_keeps_its_permissions(
    admin: LiveAdmin, orders: GroupSpec
) -> None:
    spec = orders.altered(client_username="guest")
    await create_group(admin, spec, with_user=False)
    before = (await admin.observe("orders")).permissions
    await enable_parking(admin, "orders")
    assert (await admin.observe("orders")).permissions == before
    await delete_group(admin, "orders", with_user=False)


@pytest.mark.long
async def test_the_parking_queue_survives_every_change_of_the_group(
    admin: LiveAdmin, orders: GroupSpec
) -> None:
    await create_group(admin, orders, password="members")
    await enable_parking(admin, "orders")
    await rotate_user(admin, "orders", password="another")
    await separate_publishers(admin, "orders", username=f"{orders.client_username}.publisher", password="p")
    assert await has_parking(admin)
    await repartition_group(admin, "orders", 2, timeout_s=GUARD_S)
    assert await has_parking(admin)
    assert not (await show_group(admin, "orders")).problems
    await delete_group(admin, "orders")


async def test_a_release_has_the_lock_of_the_group_as_long_as_its_own_connection(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    """The lock of another connection would be lost with that one, and the release would go on during a change."""
    await create_group(admin, orders, with_user=False)
    await enable_parking(admin, "orders")
    async with place.administered() as other:
        async with open_parked_stream(admin.amqp.link.places, "orders", is_locked=True):
            await admin.amqp.link.close()
            with pytest.raises(Busy):
                async with other.lock("orders"):
                    raise AssertionError("two have the lock")
        async with other.lock("orders"):
            pass


async def test_a_repair_of_a_lost_record_keeps_the_parking_queue(admin: LiveAdmin, orders: GroupSpec) -> None:
    await create_group(admin, orders, password="members")
    await enable_parking(admin, "orders")
    before = await admin.observe("orders")
    await admin.perform(DeleteQueue(NAMES.config))
    assert await has_parking(admin)
    surveyed = (await survey(admin, {"orders": orders}))["orders"]
    assert isinstance(surveyed, Description)
    assert any("record" in one for one in problem_lines(surveyed))
    repaired = await create_group(admin, orders, password="members")
    assert repaired.has_parking
    after = await admin.observe("orders")
    assert (after.record, after.permissions) == (before.record, before.permissions)
    assert not (await create_group(admin, orders, password="members")).changes
    assert not (await show_group(admin, "orders")).problems
    await delete_group(admin, "orders")


async def test_the_members_user_writes_to_the_parking_queue_and_reads_the_stream_alone(
    admin: LiveAdmin, orders: GroupSpec, place: Place
) -> None:
    await create_group(admin, orders, password="members")
    await enable_parking(admin, "orders")
    settings = replace(place.settings, username=orders.client_username, password="members")
    connection = await connect(settings, name="test")
    channel = await connection.open_channel()
    await channel.confirm_select()
    publisher = ConfirmingPublisher(channel)
    for name in (NAMES.parking, NAMES.parked):
        await publisher.publish(name, "orders.0", b"x", mandatory=True)
    read: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

    def on_deliveries(deliveries: list[Delivery]) -> None:
        read.set_result(deliveries[0])

    reader = await connection.open_channel()
    await reader.consume(
        NAMES.parked, on_deliveries, prefetch_count=10, arguments={"x-stream-offset": "first"}
    )
    assert bytes((await read).body) == b"x"
    for denied in (lambda one: one.basic_get(NAMES.parking), lambda one: one.queue_delete(NAMES.parked)):
        other: Channel = await connection.open_channel()
        with pytest.raises(AccessRefused):
            await denied(other)
    await connection.close()
    with pytest.raises(StillInUse, match=r"parking has 1 message"):
        await delete_group(admin, "orders")
    await delete_group(admin, "orders", force=True)


async def test_a_group_with_running_members_gets_no_parking_queue(
    admin: LiveAdmin, orders: GroupSpec, place: Place
) -> None:
    await create_group(admin, orders, password="members")

    async def handle(message: Message) -> None:
        pass

    settings = replace(place.settings, username=orders.client_username, password="members")
    async with Member(MemberSettings(broker=settings, group="orders", name="m"), handle) as member:
        await until_answer(lambda: admin.observe("orders"), lambda found: found.is_served("orders"))
        with pytest.raises(StillInUse, match="stop its members first"):
            await enable_parking(admin, "orders")
        member.stop()
    assert not await has_parking(admin)
    await delete_group(admin, "orders")


@pytest.mark.long
async def test_members_report_the_parked_keys_of_their_group(
    admin: LiveAdmin, orders: GroupSpec, place: Place
) -> None:
    await create_group(admin, orders, password="members")
    await enable_parking(admin, "orders")

    async def handle(message: Message) -> Verdict | None:
        return retry("no such account")

    settings = MemberSettings(
        broker=replace(place.settings, username=orders.client_username, password="members"),
        group="orders",
        name="m",
        max_attempts=1,
        when_exhausted="park",
        park_max_keys=1,
    )
    async with Member(settings, handle) as member:
        async with GroupPublisher(place.settings, group="orders") as publisher:
            for _ in range(3):
                await publisher.publish(key="a", body=b"x", topic="t")
        await until(lambda: member.state()["counts"]["parked"] == 3)
        shown = await show_group(admin, "orders")
        assert shown.parking is not None
        assert shown.parking == replace(shown.parking, keys=1, messages=3, is_read=True, is_full=True)
        assert [(one.kind, one.figures["count"]) for one in shown.problems] == [(Kind.KEYS_PARKED, 3)]
    await delete_group(admin, "orders", force=True)


async def test_a_record_without_the_header_is_of_a_group_without_parking(
    admin: LiveAdmin, orders: GroupSpec, place: Place, api: ManagementApi
) -> None:
    await create_group(admin, orders, password="members")
    connection = await connect(place.settings, name="test")
    channel = await connection.open_channel()
    record = await read_record(channel, "orders")
    assert not record.has_parking
    await enable_parking(admin, "orders")
    record = await read_record(channel, "orders")
    assert record.has_parking
    await connection.close()
    await delete_group(admin, "orders")


@pytest.mark.parametrize(
    ("mode", "product", "has_it"),
    [
        ("Exclusive", EMBEDDED, True),
        ("Exclusive", RABBITMQ, True),
        (PARTITIONED, EMBEDDED, False),
        (PARTITIONED, RABBITMQ, True),
        (MESSAGE_GROUPS, EMBEDDED, False),
        (SESSIONS, EMBEDDED, False),
    ],
)
def test_modes_with_a_parking_queue(mode: str, product: str, has_it: bool) -> None:
    spec = GroupSpec("orders", "orders", hash_count=8, mode=mode)
    assert (why_without_parking(spec, Engine(product, (4, 0, 5))) is None) == has_it


async def test_a_mode_without_parking_is_refused_with_the_reason(
    admin: LiveAdmin, unique: str, place: Place
) -> None:
    spec = GroupSpec("grouped", "grouped", mode=MESSAGE_GROUPS, client_username=unique)
    if (await admin.observe("grouped")).engine.is_rabbitmq:
        with pytest.raises(Unsupported):
            await create_group(admin, spec, password="members")
        return
    await create_group(admin, spec, password="members")
    with pytest.raises(Unsupported, match="moves a key to another consumer"):
        await enable_parking(admin, "grouped")
    await delete_group(admin, "grouped")


@pytest.mark.parametrize("product", [EMBEDDED, RABBITMQ])
def test_the_patterns_with_parking_are_within_what_rabbitmq_takes(product: str) -> None:
    spec = GroupSpec("x" * 63, "x" * 20, hash_count=8, queue_count=4)
    topology = topology_of(spec, Engine(product, (4, 3, 6)), has_parking=True)
    assert max(len(topology.permissions.write), len(topology.permissions.read)) <= 1024
