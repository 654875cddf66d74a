"""A user of its own for the publishers of a group, on both engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from lbg_core.admin.actions import PutPermissions
from lbg_core.admin.errors import Taken
from lbg_core.admin.groups import (
    adopt_group,
    create_group,
    delete_group,
    finish_rotation,
    rotate_user,
    separate_publishers,
    show_group,
)
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.repartition import repartition_group
from lbg_core.client import (
    AccessRefused,
    BasicProperties,
    Channel,
    ClientError,
    ConnectionSettings,
    connect,
)
from lbg_core.group import ONE_USER, TO_OBSERVERS, GroupSpec, Names, Permissions, Publishers
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message, Verdict, drop
from testing.admin.attempts import Attempt, allowed
from testing.admin.place import Place
from testing.admin.problem_lines import beside_backlog, problem_lines
from testing.waiting import GUARD_S, until

OWN = Names("orders")
MESSAGES = 40


@pytest.fixture
async def publisher(admin: LiveAdmin, orders: GroupSpec, place: Place) -> ConnectionSettings:
    """Login of the publishers of a group whose members may not publish; the members' password is `members`."""
    username = f"{orders.client_username}.publisher"
    created = await create_group(
        admin,
        orders,
        password="members",
        publishers=Publishers(username, members_publish=False),
        publisher_password="publishers",
    )
    assert (created.password, created.publisher_password) == (None, None)
    return replace(place.settings, username=username, password="publishers")


@pytest.fixture
def members(orders: GroupSpec, place: Place) -> ConnectionSettings:
    return replace(place.settings, username=orders.client_username, password="members")


@pytest.fixture
async def mine(publisher: ConnectionSettings) -> AsyncIterator[Channel]:
    """A channel of the publishers' user."""
    connection = await connect(publisher, name="test")
    yield await connection.open_channel()
    await connection.close()


async def publish(channel: Channel, exchange: str, key: str = "orders.0.x") -> None:
    """With a request behind it, whose answer shows whether the channel is still there."""
    await channel.confirm_select()
    channel.publish(exchange, key, b"x")
    await channel.basic_qos(1)


async def test_publishers_and_members_work_with_a_user_each(
    publisher: ConnectionSettings, members: ConnectionSettings
) -> None:
    delivered: list[str] = []
    all_are_delivered = asyncio.Event()

    async def handle(message: Message) -> None:
        delivered.append(str(message.key))
        if len(delivered) == MESSAGES:
            all_are_delivered.set()

    settings = MemberSettings(broker=members, group="orders", name="m", rebalance_delay_s=0.1)
    async with Member(settings, handle), GroupPublisher(publisher, group="orders") as publishing:
        for number in range(MESSAGES):
            await publishing.publish(key=f"k{number}", body=b"x", topic="a.b")
        await publishing.flush()
        await all_are_delivered.wait()
    assert sorted(delivered) == sorted(f"k{number}" for number in range(MESSAGES))


async def test_a_message_that_names_its_publishers_user_can_be_a_dead_letter(
    publisher: ConnectionSettings, members: ConnectionSettings, mine: Channel
) -> None:
    async def refuse(_message: Message) -> Verdict:
        return drop("no")

    settings = MemberSettings(broker=members, group="orders", name="m", rebalance_delay_s=0.1)
    properties = BasicProperties(user_id=publisher.username, message_id="1", delivery_mode=2)
    async with Member(settings, refuse) as member:
        mine.publish(OWN.exchange, "orders.0.x", b"x", properties=properties)
        await until(lambda: member.state()["counts"]["dead_lettered"] == 1)


REFUSED: dict[str, Attempt] = {
    "consume a queue": lambda on: on.consume(OWN.queue(0), print),
    "get from a queue": lambda on: on.basic_get(OWN.queue(0)),
    "purge a queue": lambda on: on.queue_purge(OWN.queue(0)),
    "delete a queue": lambda on: on.queue_delete(OWN.queue(0)),
    "bind a queue": lambda on: on.queue_bind(OWN.queue(0), OWN.exchange, "orders.9.#"),
    "unbind a queue": lambda on: on.queue_unbind(OWN.queue(0), OWN.exchange, "orders.0.#"),
    "publish past the group's exchange": lambda on: publish(on, "", OWN.queue(0)),
    "publish into a mailbox": lambda on: publish(on, "", OWN.mailbox(0)),
    "send a message to members": lambda on: publish(on, OWN.members, "all"),
    "listen to members": lambda on: on.queue_bind(OWN.queue(0), OWN.members, "all"),
    "read members' status reports": lambda on: on.queue_bind(OWN.queue(0), OWN.members, TO_OBSERVERS),
    "send a status report": lambda on: publish(on, OWN.members, TO_OBSERVERS),
    "claim an index": lambda on: on.queue_declare(OWN.mailbox(0), exclusive=True),
    "add a dead letter": lambda on: publish(on, OWN.dlx, ""),
    "report to the validator": lambda on: publish(on, OWN.validate, ""),
    "get the record": lambda on: on.basic_get(OWN.config),
    "purge the record": lambda on: on.queue_purge(OWN.config),
    "write the record": lambda on: publish(on, "", OWN.config),
    "write a copy of the record": lambda on: publish(on, "", OWN.record),
    "delete the copies of the record": lambda on: on.queue_delete(OWN.record),
    "bind the copies of the record": lambda on: on.queue_bind(OWN.record, OWN.exchange, "#"),
    "read the dead letters": lambda on: on.consume(OWN.dead, print),
    "purge the dead letters": lambda on: on.queue_purge(OWN.dead),
    "declare a queue of its own": lambda on: on.queue_declare("", exclusive=True),
    "declare a queue of a future number": lambda on: on.queue_declare(OWN.queue(99)),
    "declare an exchange": lambda on: on.exchange_declare("lbg.orders.more", "fanout"),
    "delete the group's exchange": lambda on: on.exchange_delete(OWN.exchange),
    "route to another group's queue": lambda on: publish(on, "lbg.other"),
    "read what nobody took": lambda on: on.basic_get(OWN.unrouted),
}


async def test_the_publishers_user_is_refused_what_is_the_members_or_the_administrators(
    publisher: ConnectionSettings,
) -> None:
    connection = await connect(publisher, name="test")
    assert await allowed(connection, REFUSED) == []
    await connection.close()


@pytest.mark.parametrize(
    "destroys", [lambda on: on.queue_purge(OWN.record), lambda on: on.basic_get(OWN.record)]
)
async def test_the_copies_of_the_record_cannot_be_removed_by_those_who_read_them(
    publisher: ConnectionSettings, destroys: Callable[[Channel], Awaitable[object]]
) -> None:
    connection = await connect(publisher, name="test")
    with pytest.raises(ClientError, match="540"):
        await destroys(await connection.open_channel())
    await connection.close()
    async with GroupPublisher(publisher, group="orders") as publishing:  # reads a copy
        await publishing.publish(key="k", body=b"x", topic="")


async def test_members_may_not_publish(publisher: ConnectionSettings, members: ConnectionSettings) -> None:
    connection = await connect(members, name="test")
    with pytest.raises(AccessRefused):
        await publish(await connection.open_channel(), OWN.exchange)
    await connection.close()


async def test_a_group_of_one_user_gets_another_for_its_publishers_without_a_stop(
    admin: LiveAdmin, orders: GroupSpec, place: Place, members: ConnectionSettings
) -> None:
    await create_group(admin, orders, password="members")
    added = f"{orders.client_username}.added"
    async with GroupPublisher(members, group="orders") as before:
        await before.publish(key="k", body=b"1", topic="")
        await before.flush()
        done = await separate_publishers(admin, "orders", username=added)
        assert (done.username, done.password is not None) == (added, True)
        await before.publish(key="k", body=b"2", topic="")
        await before.flush()
    login = replace(place.settings, username=added, password=done.password or "")
    async with GroupPublisher(login, group="orders") as after:
        await after.publish(key="k", body=b"3", topic="")
    shown = await show_group(admin, "orders", listen_s=0)
    assert (shown.publishers, shown.ready, beside_backlog(shown)) == (Publishers(added), 3, ())
    await separate_publishers(admin, "orders", members_publish=False)
    shown = await show_group(admin, "orders", listen_s=0)
    assert (shown.publishers, beside_backlog(shown)) == (Publishers(added, members_publish=False), ())


@pytest.mark.long
async def test_the_users_survive_each_change_of_the_record(
    admin: LiveAdmin, orders: GroupSpec, publisher: ConnectionSettings
) -> None:
    publishers = Publishers(publisher.username, members_publish=False)
    await repartition_group(admin, "orders", 2, timeout_s=GUARD_S)
    await rotate_user(admin, "orders", password="members-2")
    await adopt_group(admin, "orders")
    shown = await show_group(admin, "orders", listen_s=0)
    assert (shown.publishers, beside_backlog(shown)) == (publishers, ())
    connection = await connect(publisher, name="test")
    await publish(await connection.open_channel(), OWN.exchange)
    await connection.close()
    async with GroupPublisher(publisher, group="orders") as publishing:
        await publishing.publish(key="k", body=b"x", topic="")


async def test_the_publishers_user_rotates_in_a_pair_and_apart_from_the_members(
    admin: LiveAdmin, orders: GroupSpec, place: Place, publisher: ConnectionSettings
) -> None:
    second = f"{orders.client_username}.second"
    await separate_publishers(admin, "orders", username=second, password="two")
    for login in (publisher, replace(place.settings, username=second, password="two")):
        async with GroupPublisher(login, group="orders") as publishing:
            await publishing.publish(key="k", body=b"x", topic="")
    shown = await show_group(admin, "orders", listen_s=0)
    assert [line for line in problem_lines(shown) if publisher.username in line and "--finish" in line]
    deleted = await finish_rotation(admin, "orders", force=True)
    assert [str(action) for action in deleted] == [f"delete user {publisher.username}"]
    assert beside_backlog(await show_group(admin, "orders", listen_s=0)) == ()


async def test_a_new_group_does_not_take_a_user_of_others_for_its_publishers(
    admin: LiveAdmin, orders: GroupSpec
) -> None:
    for username in ("guest", orders.client_username):
        with pytest.raises(Taken, match=username):
            await create_group(admin, orders, publishers=Publishers(username))
    assert (await admin.observe("orders")).is_empty


@pytest.mark.long
async def test_a_record_that_was_lost_is_written_again_with_the_publishers(
    admin: LiveAdmin, orders: GroupSpec, place: Place
) -> None:
    await create_group(admin, orders, publishers=Publishers("orders.publisher"))
    connection = await connect(place.settings, name="test")
    await (await connection.open_channel()).queue_purge(OWN.config)
    await connection.close()
    await create_group(admin, orders)
    shown = await show_group(admin, "orders", listen_s=0)
    await delete_group(admin, "orders")  # with that user, whom all virtual hosts of the node have
    assert (shown.publishers, beside_backlog(shown)) == (Publishers("orders.publisher"), ())


async def test_a_user_of_others_is_not_taken(
    admin: LiveAdmin, orders: GroupSpec, publisher: ConnectionSettings
) -> None:
    for username in ("guest", orders.client_username):
        with pytest.raises(Taken):
            await separate_publishers(admin, "orders", username=username)
    with pytest.raises(Taken, match="publishers"):
        await rotate_user(admin, "orders", username=publisher.username)


async def test_create_repairs_the_permissions_of_both_users(
    admin: LiveAdmin, orders: GroupSpec, publisher: ConnectionSettings, members: ConnectionSettings
) -> None:
    for user in (publisher.username, members.username):
        await admin.perform(PutPermissions(user, Permissions("^$", "^$", "^$")))
    assert len((await show_group(admin, "orders", listen_s=0)).problems) == 2
    again = await create_group(admin, orders)
    assert sorted(str(change) for change in again.changes) == sorted(
        f"grant user {user} its permissions" for user in (publisher.username, members.username)
    )
    assert beside_backlog(await show_group(admin, "orders", listen_s=0)) == ()


async def test_delete_leaves_neither_user_nor_copies(
    admin: LiveAdmin, publisher: ConnectionSettings, members: ConnectionSettings
) -> None:
    await delete_group(admin, "orders")
    left = await admin.observe("orders")
    assert left.is_empty
    assert left.users_of("orders") == []
    assert left.publishers == ONE_USER
