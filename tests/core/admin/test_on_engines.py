"""Provisioning on both engines: what the fake stands for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import pytest

from lbg_core.admin import GroupNotFound, RecordUnreadable, read_group
from lbg_core.admin.actions import (
    DeclareExchange,
    DeleteExchange,
    DeleteQueue,
    DeleteUser,
    PutUser,
    WriteRecord,
)
from lbg_core.admin.errors import (
    Busy,
    Denied,
    GroupDiffers,
    NotOwned,
    RecordUnavailable,
    StillInUse,
    Taken,
    Unreachable,
    Unsupported,
)
from lbg_core.admin.groups import create_group, delete_group, delete_own, list_groups, show_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings
from lbg_core.admin.member_requests import pause_group
from lbg_core.admin.problems import lines_of
from lbg_core.admin.record import CLAIM_BY_HAND, CONSUMPTION, Record
from lbg_core.client import ConnectionSettings, connect
from lbg_core.group import GroupSpec, Names, topology_of
from lbg_core.group.topology import Exchange
from lbg_sidecar.io.startup import group_of, record_now
from testing.admin.place import Place
from testing.waiting import GUARD_S, until_answer


async def test_what_was_created_is_seen_as_whole_and_creating_it_again_changes_nothing(
    admin: LiveAdmin, orders: GroupSpec
) -> None:
    created = await create_group(admin, orders)
    assert not created.was_there
    again = await create_group(admin, orders)
    assert again.was_there
    assert again.changes == ()


async def test_a_password_that_is_set_is_known_by_its_hash(admin: LiveAdmin, orders: GroupSpec) -> None:
    await create_group(admin, orders, password="first")
    assert (await create_group(admin, orders, password="first")).changes == ()
    again = await create_group(admin, orders, password="second")
    assert [str(change) for change in again.changes] == [f"set the password of user {orders.client_username}"]


async def test_the_groups_user_can_do_what_a_member_does_and_no_more(
    admin: LiveAdmin, orders: GroupSpec, settings: ConnectionSettings
) -> None:
    created = await create_group(admin, orders)
    assert created.password is not None
    login = ConnectionSettings(
        host=settings.host,
        port=settings.port,
        vhost=settings.vhost,
        username=orders.client_username,
        password=created.password,
    )
    connection = await connect(login, name="member")
    channel = await connection.open_channel()
    names = Names("orders")
    assert await read_group(channel, "orders") == orders
    await channel.queue_declare(names.mailbox(0), exclusive=True)
    await channel.queue_bind(names.mailbox(0), names.members, "all")
    await channel.consume(names.queue(0), lambda deliveries: None)
    for forbidden in (names.exchange, "elsewhere"):
        with pytest.raises(Exception, match="403"):
            await (await connection.open_channel()).exchange_delete(forbidden)
    await connection.close()


async def test_a_deleted_group_leaves_nothing(
    admin: LiveAdmin, orders: GroupSpec, api: ManagementApi
) -> None:
    await create_group(admin, orders)
    await delete_group(admin, "orders")
    observed = await admin.observe("orders", desired=orders)
    assert observed.is_empty
    assert observed.user(orders.client_username) is None
    with pytest.raises(GroupNotFound):
        await delete_group(admin, "orders")


async def test_messages_and_consumers_stop_a_delete_and_force_overrules(
    admin: LiveAdmin, orders: GroupSpec, settings: ConnectionSettings
) -> None:
    await create_group(admin, orders)
    connection = await connect(settings, name="test")
    channel = await connection.open_channel()
    await channel.confirm_select()
    channel.publish("lbg.orders", "orders.1.x", b"{}")
    await channel.consume("lbg.orders.q.2", lambda deliveries: None)
    with pytest.raises(StillInUse) as refused:
        await delete_group(admin, "orders")
    assert tuple(lines_of(refused.value.problem.causes)) == (
        "lbg.orders.q.1 has 1 message, 0 consumers",
        "lbg.orders.q.2 has 0 messages, 1 consumer",
    )
    await delete_group(admin, "orders", force=True)
    assert (await admin.observe("orders", desired=orders)).is_empty
    await connection.close()


async def test_a_group_deleted_in_part_is_repaired_or_deleted(admin: LiveAdmin, orders: GroupSpec) -> None:
    await create_group(admin, orders)
    for action in (
        DeleteQueue("lbg.orders.q.1"),
        DeleteExchange("lbg.orders"),
        DeleteQueue("lbg.orders.config"),
    ):
        await admin.perform(action)
    with pytest.raises(Taken):
        await create_group(admin, orders)
    await admin.perform(DeleteExchange("lbg.orders.members"))
    await delete_group(admin, "orders")
    observed = await admin.observe("orders", desired=orders)
    assert observed.is_empty
    assert observed.user(orders.client_username) is None


async def test_queues_of_another_owner_under_the_groups_name_are_neither_taken_nor_deleted(
    admin: LiveAdmin, orders: GroupSpec, settings: ConnectionSettings
) -> None:
    connection = await connect(settings, name="another owner")
    channel = await connection.open_channel()
    for name in ("lbg.orders.q.0", "lbg.orders.audit"):
        await channel.queue_declare(name, durable=True)
    await channel.confirm_select()
    channel.publish("", "lbg.orders.q.0", b"theirs")
    await channel.exchange_declare("lbg.orders", "fanout", durable=True)
    with pytest.raises(Taken):
        await create_group(admin, orders, finish=True)
    with pytest.raises(NotOwned, match="group 'orders' on this broker has another owner"):
        await delete_own(admin, orders, claim=CLAIM_BY_HAND, is_made=False, force=True)
    there = await admin.observe("orders")
    assert there.exchanges["lbg.orders"] is not None
    assert (await channel.queue_declare("lbg.orders.q.0", passive=True)).message_count == 1
    assert (await channel.queue_declare("lbg.orders.audit", passive=True)).message_count == 0
    for name in ("lbg.orders.q.0", "lbg.orders.audit"):
        await channel.queue_delete(name)
    await channel.exchange_delete("lbg.orders")
    await connection.close()


async def test_a_group_whose_user_is_another_owners_is_neither_taken_nor_deleted(
    admin: LiveAdmin, orders: GroupSpec
) -> None:
    await admin.perform(PutUser(orders.client_username, "theirs", "elsewhere", is_new=True))
    await create_group(admin, orders, with_user=False)
    with pytest.raises(Taken):
        await create_group(admin, orders, finish=True)
    with pytest.raises(NotOwned):
        await delete_own(admin, orders, claim=CLAIM_BY_HAND, is_made=False, force=True)
    assert (await show_group(admin, "orders")).spec == orders
    await delete_own(admin, orders, claim=CLAIM_BY_HAND, is_made=True)
    left = await admin.observe("orders", desired=orders)
    assert left.is_empty
    assert left.user(orders.client_username) is not None
    await admin.perform(DeleteUser(orders.client_username))


async def test_a_lost_record_is_written_again(admin: LiveAdmin, orders: GroupSpec) -> None:
    await create_group(admin, orders)
    await admin.perform(DeleteQueue("lbg.orders.config"))
    again = await create_group(admin, orders)
    assert [type(change).__name__ for change in again.changes] == ["DeclareQueue", "WriteRecord"]
    assert (await show_group(admin, "orders")).spec == orders


async def test_a_new_record_takes_the_place_of_the_old_one(
    admin: LiveAdmin, orders: GroupSpec, settings: ConnectionSettings
) -> None:
    await create_group(admin, orders)
    for text in ("not json", orders.to_record()):
        await admin.perform(WriteRecord("orders", Record(text)))
    connection = await connect(settings, name="test")
    channel = await connection.open_channel()
    got = await channel.basic_get("lbg.orders.config")
    assert got is not None
    assert (bytes(got.body).decode(), got.message_count) == (orders.to_record(), 0)
    await connection.close()


async def test_a_member_that_comes_back_does_not_go_by_the_record_of_a_group_that_is_being_made(
    admin: LiveAdmin, orders: GroupSpec, settings: ConnectionSettings
) -> None:
    await create_group(admin, orders)
    connection = await connect(settings, name="test")
    recorded = await record_now(connection, "orders")
    assert recorded is not None
    assert recorded[1] == orders
    await admin.perform(WriteRecord("orders", Record(orders.to_unfinished())))
    assert await record_now(connection, "orders") is None
    await connection.close()


async def test_a_reader_is_told_when_there_is_no_group_or_no_record(
    admin: LiveAdmin, orders: GroupSpec, settings: ConnectionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_core.admin.record.READ_INTERVAL_S", 0.001)
    connection = await connect(settings, name="test")
    with pytest.raises(GroupNotFound, match="no group 'orders'"):
        await read_group(await connection.open_channel(), "orders")
    await create_group(admin, orders)
    channel = await connection.open_channel()
    await channel.queue_purge("lbg.orders.config")
    with pytest.raises(RecordUnreadable, match="its queue is empty"):
        await read_group(channel, "orders")
    await connection.close()


async def test_members_that_start_together_read_the_record_in_turn(
    admin: LiveAdmin, orders: GroupSpec, settings: ConnectionSettings
) -> None:
    await create_group(admin, orders)
    connections = [await connect(settings, name="test") for _ in range(6)]
    channel = await connections[0].open_channel()
    held = await channel.basic_get(Names("orders").config)
    assert held is not None
    readers = [asyncio.create_task(group_of(connection, "orders")) for connection in connections]
    assert not (await asyncio.wait(readers, timeout=0.3))[0]
    channel.nack(held.delivery_tag)
    assert {group.spec for group in await asyncio.gather(*readers)} == {orders}
    await until_answer(lambda: admin.amqp.record("orders"), lambda record: record is not None)
    for connection in connections:
        await connection.close()


async def test_a_member_in_line_is_told_that_the_group_is_gone_or_its_record_is_lost(
    admin: LiveAdmin, orders: GroupSpec, settings: ConnectionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_group(admin, orders)
    connection = await connect(settings, name="test")
    channel = await connection.open_channel()
    await channel.queue_purge(Names("orders").config)
    monkeypatch.setattr("lbg_core.admin.record.TURN_S", 0.1)
    with pytest.raises(RecordUnreadable, match="its queue is empty"):
        await group_of(connection, "orders")
    monkeypatch.setattr("lbg_core.admin.record.TURN_S", GUARD_S)
    reader = asyncio.create_task(group_of(connection, "orders"))
    assert not (await asyncio.wait([reader], timeout=0.3))[0]
    await channel.queue_delete(Names("orders").config)
    with pytest.raises(GroupNotFound):
        await reader
    with pytest.raises(GroupNotFound):
        await group_of(connection, "orders")
    await connection.close()


@pytest.mark.long
@pytest.mark.parametrize("returns", [True, False])
async def test_a_record_that_a_reader_holds_is_not_made_anew(
    place: Place, admin: LiveAdmin, orders: GroupSpec, returns: bool
) -> None:
    """It would be one without the pause, and without the change of queues that is on its way."""
    await create_group(admin, orders)
    await pause_group(admin, "orders", within_s=0.0)
    connection = await connect(place.settings)
    channel = await connection.open_channel()
    held = await channel.basic_get(Names("orders").config)
    assert held is not None
    create = asyncio.create_task(create_group(admin, orders))
    if returns:
        await asyncio.sleep(1.0)
        channel.nack(held.delivery_tag, requeue=True)
        assert (await create).changes == ()
    else:
        with pytest.raises(RecordUnavailable, match="does not return it"):
            await create
    await connection.close()
    record = (await admin.observe("orders")).record
    assert isinstance(record, Record)
    assert record.is_paused


async def test_twenty_readers_at_once_all_read_the_record(
    admin: LiveAdmin, orders: GroupSpec, settings: ConnectionSettings
) -> None:
    await create_group(admin, orders)
    connection = await connect(settings, name="test")
    channels = [await connection.open_channel() for _ in range(20)]
    specs = await asyncio.gather(*(read_group(channel, "orders") for channel in channels))
    assert set(specs) == {orders}
    await connection.close()


@pytest.mark.long
async def test_a_member_that_starts_waits_for_a_record_that_others_hold_in_turn(
    admin: LiveAdmin, orders: GroupSpec, settings: ConnectionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many members that start together hold it for longer than a single reader does."""
    monkeypatch.setattr("lbg_core.admin.record.READ_INTERVAL_S", 0.005)
    await create_group(admin, orders)
    connection = await connect(settings, name="test")
    holder, reader = await connection.open_channel(), await connection.open_channel()
    assert await holder.basic_get("lbg.orders.config") is not None
    member = asyncio.create_task(group_of(connection, "orders"))
    for _ in range(2):
        with pytest.raises(RecordUnreadable, match="its queue is empty"):
            await read_group(reader, "orders")
    await holder.close()
    assert (await member).spec == orders
    await connection.close()


async def test_other_attributes_are_refused_with_the_difference(admin: LiveAdmin, orders: GroupSpec) -> None:
    await create_group(admin, orders)
    desired = GroupSpec(
        "orders",
        "orders",
        hash_count=8,
        queue_count=2,
        queue_size_mb=10,
        client_username=orders.client_username,
    )
    with pytest.raises(GroupDiffers) as refused:
        await create_group(admin, desired)
    assert refused.value.problem.figures["diff"] == ("queue_count: 4 -> 2", "max_clients: 4 -> 2")


async def test_a_prefix_and_a_user_of_another_group_are_taken(admin: LiveAdmin, orders: GroupSpec) -> None:
    await create_group(admin, orders)
    desired = GroupSpec(
        "invoices",
        "orders",
        hash_count=8,
        queue_count=4,
        queue_size_mb=10,
        client_username=orders.client_username,
    )
    with pytest.raises(Taken) as refused:
        await create_group(admin, desired)
    assert tuple(lines_of(refused.value.problem.causes)) == (
        "prefix 'orders' is that of another group",
        f"user {orders.client_username!r} is that of another group",
    )


async def test_two_provisioners_do_not_work_on_one_group_at_once(
    admin: LiveAdmin, orders: GroupSpec, settings: ConnectionSettings
) -> None:
    other = LiveAdmin(settings)
    async with other.lock("orders"), admin.lock("invoices"):
        for one in (admin, other):
            with pytest.raises(Busy):
                await create_group(one, orders)
    await create_group(admin, orders)
    await create_group(other, orders, with_user=False)
    await other.close()


async def test_others_see_that_a_command_goes_on_with_a_change_until_it_is_over_or_killed(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    await create_group(admin, orders)
    async with place.administered() as command, place.administered() as other:
        assert await admin.amqp.locks.is_driven("orders") is False
        await command.drive("orders")
        await other.drive("orders")
        await other.drive("orders", is_over=True)
        assert [await one.amqp.locks.is_driven("orders") for one in (admin, command)] == [True, True]
        assert not [name for name in (await admin.observe("orders")).queues if "provisioning" in name]
        await command.drive("orders", is_over=True)
        assert await admin.amqp.locks.is_driven("orders") is False
        await command.drive("orders")
    async with asyncio.timeout(GUARD_S):
        while await admin.amqp.locks.is_driven("orders"):
            pass


async def test_groups_are_listed_by_their_records(admin: LiveAdmin, orders: GroupSpec) -> None:
    await create_group(admin, orders)
    await create_group(
        admin,
        GroupSpec("b", "b", hash_count=2, queue_count=1, queue_size_mb=1, client_username="b"),
        with_user=False,
    )
    assert [one.group for one in await list_groups(admin)] == ["b", "orders"]


async def test_without_a_management_api_a_group_is_created_checked_and_deleted_with_no_user(
    settings: ConnectionSettings, orders: GroupSpec
) -> None:
    admin = LiveAdmin(settings)
    with pytest.raises(Unsupported, match=r"no management API was given.*--no-user"):
        await create_group(admin, orders)
    await create_group(admin, orders, with_user=False)
    assert (await create_group(admin, orders, with_user=False)).was_there
    shown = await show_group(admin, "orders")
    assert [line.count("ready") for line in shown.queues] == [0, 0, 0, 0]
    assert shown.to_json()["unacked"] == "unknown"
    with pytest.raises(Unsupported, match="no management API"):
        await list_groups(admin)
    with pytest.raises(Unsupported, match="user cannot be deleted"):
        await delete_group(admin, "orders")
    await delete_group(admin, "orders", with_user=False)
    assert (await admin.observe("orders", desired=orders)).is_empty
    await admin.close()


async def test_what_a_delete_left_is_found_by_counting_where_nothing_lists_it(
    settings: ConnectionSettings, orders: GroupSpec
) -> None:
    admin = LiveAdmin(settings)
    await create_group(admin, orders, with_user=False)
    for name in ("lbg.orders.config", "lbg.orders.q.3"):
        await admin.perform(DeleteQueue(name))
    await delete_group(admin, "orders", with_user=False)
    assert (await admin.observe("orders", desired=orders)).is_empty
    await admin.close()


async def test_a_connection_lost_in_the_middle_is_made_again_to_take_back(
    admin: LiveAdmin, orders: GroupSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform = admin.perform

    async def perform_and_lose(action: object) -> None:
        if isinstance(action, WriteRecord):
            (await admin.amqp.link.connection()).abort()
        await perform(action)

    monkeypatch.setattr(admin, "perform", perform_and_lose)
    # The record is written over a new connection: losing one is no failure of the plan.
    await create_group(admin, orders)
    assert (await show_group(admin, "orders")).spec == orders


@asynccontextmanager
async def locked_by(other: LiveAdmin) -> AsyncIterator[None]:
    """A lost connection's lock is let go by the broker, not by us."""
    async with asyncio.timeout(GUARD_S), AsyncExitStack() as stack:
        while True:
            with suppress(Busy):
                await stack.enter_async_context(other.lock("orders"))
                break
        yield


@pytest.mark.long
async def test_a_record_that_was_written_while_the_lock_was_lost_is_not_written_over(
    admin: LiveAdmin, orders: GroupSpec, settings: ConnectionSettings
) -> None:
    await create_group(admin, orders)
    before = await admin.amqp.record("orders")
    assert before is not None
    other = LiveAdmin(settings)
    async with admin.lock("orders"):
        (await admin.amqp.link.connection()).abort()
        async with locked_by(other):
            await other.perform(
                WriteRecord("orders", replace(before, paused=frozenset({CONSUMPTION})), before)
            )
        with pytest.raises(Busy):
            await admin.perform(WriteRecord("orders", replace(before, has_parking=True), before))
    assert await other.amqp.record("orders") == replace(before, paused=frozenset({CONSUMPTION}))
    await other.close()


@pytest.mark.long
async def test_a_lock_that_outlives_the_lost_connection_is_waited_for(
    admin: LiveAdmin, settings: ConnectionSettings
) -> None:
    """A busy broker lets go of it later; here somebody else holds it for a moment, which looks the same."""
    change = DeleteQueue("lbg.orders.q.0")
    other = LiveAdmin(settings)
    async with admin.lock("orders"):
        (await admin.amqp.link.connection()).abort()
        async with locked_by(other):
            changing = asyncio.create_task(admin.perform(change))
            await asyncio.sleep(0.3)
            assert not changing.done()
        await changing
        with pytest.raises(Busy):
            async with other.lock("orders"):
                pass
    async with other.lock("orders"):
        pass
    await other.close()


async def test_whoever_lost_the_lock_for_good_changes_nothing_more(
    admin: LiveAdmin, settings: ConnectionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_core.admin.group_locks.LOCK_AGAIN_S", 0.1)
    other = LiveAdmin(settings)
    change = DeclareExchange(Exchange("lbg.orders.dlx", "fanout"))
    async with admin.lock("orders"):
        (await admin.amqp.link.connection()).abort()
        async with locked_by(other):
            with pytest.raises(Busy):
                await admin.perform(change)
        with pytest.raises(Busy):
            await admin.perform(change)
    assert await admin.amqp.exchanges(["lbg.orders.dlx"]) == {"lbg.orders.dlx": None}
    await other.close()


@pytest.mark.long
async def test_a_broker_that_does_not_answer_and_a_wrong_password_are_named(
    place: Place, settings: ConnectionSettings, orders: GroupSpec
) -> None:
    nobody = LiveAdmin(ConnectionSettings(host="127.0.0.1", port=1))
    with pytest.raises(Unreachable, match=r"cannot be reached: amqp://guest@127\.0\.0\.1:1/: "):
        await create_group(nobody, orders)
    wrong = LiveAdmin(
        ConnectionSettings(host=settings.host, port=settings.port, vhost=settings.vhost, password="s3cret")
    )
    with pytest.raises(Denied) as denied:
        await create_group(wrong, orders)
    assert "s3cret" not in str(denied.value)
    deaf = LiveAdmin(settings, ManagementApi(ManagementSettings.parse("http://127.0.0.1:1")))
    with pytest.raises(Unsupported, match=r"http://127\.0\.0\.1:1 cannot be reached"):
        await create_group(deaf, orders)
    await deaf.close()
    api = ManagementApi(replace(place.management, password="s3cret"))
    shut_out = LiveAdmin(settings, api)
    with pytest.raises(Unsupported, match="refuses user 'guest'"):
        await create_group(shut_out, orders)
    for admin in (nobody, wrong, shut_out):
        await admin.close()


async def test_the_topology_of_this_engine_is_what_stands_on_it(admin: LiveAdmin, orders: GroupSpec) -> None:
    await create_group(admin, orders)
    observed = await admin.observe("orders")
    topology = topology_of(orders, observed.engine)
    for queue in topology.queues:
        seen = observed.queues[queue.name]
        assert seen is not None
        assert dict(seen.arguments) == dict(queue.arguments)
    assert observed.bindings == frozenset(topology.bindings)
