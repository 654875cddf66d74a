"""The group's user: may do all that members and publishers do, and nothing else (RabbitMQ's guide "Access Control")."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from lbg_core.admin.actions import PutPermissions
from lbg_core.admin.groups import create_group, show_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings, path
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.client import Channel, ClientConnection, ConnectError, ConnectionSettings, connect
from lbg_core.group import RABBITMQ, TO_OBSERVERS, Engine, GroupSpec, Names, topology_of
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Beat
from lbg_core.group.message_codec import encode
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message, Verdict, drop
from testing.admin.attempts import Attempt, allowed
from testing.admin.problem_lines import problem_lines
from testing.rabbitmq.node import RabbitNode

OWN = Names("orders")
OTHER = Names("orders-2")  # its names begin with those of the first
MESSAGES = 40


@dataclass(frozen=True)
class Place:
    """Two groups, each with a user; `login` is that of the first one's."""

    admin: LiveAdmin
    api: ManagementApi
    login: ConnectionSettings


@pytest.fixture
async def place(rabbitmq: RabbitNode, rabbit_vhost: str, unique: str) -> AsyncIterator[Place]:
    settings = ConnectionSettings.parse(rabbit_vhost)
    api = ManagementApi(ManagementSettings.parse(rabbitmq.management_url))
    admin = LiveAdmin(settings, api)
    try:
        for names, user in ((OWN, unique), (OTHER, f"{unique}-2")):
            spec = GroupSpec(
                names.group, names.group, hash_count=4, queue_count=2, queue_size_mb=1, client_username=user
            )
            await create_group(admin, spec, password="s3cret")
        yield Place(admin, api, replace(settings, username=unique, password="s3cret"))
    finally:
        await admin.close()


@pytest.fixture
async def connection(place: Place) -> AsyncIterator[ClientConnection]:
    connection = await connect(place.login, name="test")
    yield connection
    await connection.close()


async def test_a_publisher_and_members_work_as_the_groups_user(place: Place) -> None:
    """Published, moved to a member that joins, delivered, republished, dropped to the dead letters."""
    delivered: list[str] = []

    async def handle(message: Message) -> Verdict | None:
        delivered.append(str(message.key))
        return drop("not wanted") if message.key == "k0" else None

    watching = await connect(replace(place.login, username="guest", password="guest"))
    channel = await watching.open_channel()
    await channel.queue_declare("seen", durable=True)
    await channel.queue_bind("seen", OWN.validate)
    settings = MemberSettings(broker=place.login, group="orders", republish=True, rebalance_delay_s=0.1)
    async with (
        Member(replace(settings, name="m1"), handle),
        GroupPublisher(place.login, group="orders") as publisher,
    ):
        for number in range(MESSAGES // 2):
            await publisher.publish(key=f"k{number}", body=b"x", topic="a.b")
        async with Member(replace(settings, name="m2"), handle):
            for number in range(MESSAGES // 2, MESSAGES):
                await publisher.publish(key=f"k{number}", body=b"x", topic="")
            await publisher.flush()
            for _ in range(300):
                if len(delivered) >= MESSAGES and await dead_letters(place) == 1:
                    break
                await asyncio.sleep(0.1)
    assert (len(delivered), await dead_letters(place)) == (MESSAGES, 1)
    assert (await channel.queue_declare("seen", passive=True)).message_count == MESSAGES - 1
    await watching.close()


async def dead_letters(place: Place) -> object:
    return (await show_group(place.admin, "orders", listen_s=0)).dead_letters


async def publish(channel: Channel, exchange: str, key: str = "orders.0.x") -> None:
    """With a request behind it, whose answer shows whether the channel is still there."""
    await channel.confirm_select()
    channel.publish(exchange, key, b"x")
    await channel.basic_qos(1)


REFUSED: dict[str, Attempt] = {
    # Somebody else's
    "consume from another group's queue": lambda on: on.consume(OTHER.queue(0), print),
    "get from another group's queue": lambda on: on.basic_get(OTHER.queue(0)),
    "read another group's record": lambda on: on.basic_get(OTHER.config),
    "publish to another group": lambda on: publish(on, OTHER.exchange),
    "speak to another group's members": lambda on: publish(on, OTHER.members, "all"),
    "listen to another group's members": lambda on: on.queue_bind(OWN.mailbox(9), OTHER.members, "all"),
    "read reports of another group's members": lambda on: on.queue_bind(
        OWN.mailbox(9), OTHER.members, TO_OBSERVERS
    ),
    "claim an index of another group": lambda on: on.queue_declare(OTHER.mailbox(0), exclusive=True),
    "publish past every exchange": lambda on: publish(on, "", OWN.queue(0)),
    "publish to an exchange of the broker's": lambda on: publish(on, "amq.topic"),
    "make a queue of another name": lambda on: on.queue_declare("mine", exclusive=True),
    "make an exchange": lambda on: on.exchange_declare("mine", "topic"),
    # The group's own, which belongs to whoever made the group
    "delete a queue": lambda on: on.queue_delete(OWN.queue(0)),
    "purge a queue": lambda on: on.queue_purge(OWN.dead),
    "delete an exchange": lambda on: on.exchange_delete(OWN.exchange),
    "declare a queue anew": lambda on: on.queue_declare(OWN.queue(2), durable=True),
    "declare an exchange anew": lambda on: on.exchange_declare("lbg.orders.more", "fanout"),
    "bind a queue": lambda on: on.queue_bind(OWN.queue(0), OWN.exchange, "orders.9.#"),
    "unbind a queue": lambda on: on.queue_unbind(OWN.queue(0), OWN.exchange, "orders.0.#"),
    "listen in on the group's messages": lambda on: on.queue_bind(OWN.mailbox(9), OWN.exchange, "#"),
    "listen in on what is republished": lambda on: on.queue_bind(OWN.mailbox(9), OWN.validate, ""),
    "read the dead letters": lambda on: on.consume(OWN.dead, print),
    "read what no queue took": lambda on: on.basic_get(OWN.unrouted),
    "write the record": lambda on: publish(on, "", OWN.config),
    "delete the dead letters": lambda on: on.queue_delete(OWN.dead),
    "have no dead letters come": lambda on: on.queue_unbind(OWN.dead, OWN.dlx, ""),
    "read a dead letter": lambda on: on.basic_get(OWN.dead),
    "have copies among the dead letters": lambda on: on.queue_bind(OWN.dead, OWN.exchange, "#"),
    "purge what no queue took": lambda on: on.queue_purge(OWN.unrouted),
    "delete what no queue took": lambda on: on.queue_delete(OWN.unrouted),
    "take a mailbox with a name that is none": lambda on: on.queue_declare(
        "lbg.orders.member.x", exclusive=True
    ),
}


async def test_the_groups_user_is_refused_what_is_another_groups_or_the_administrators(
    connection: ClientConnection,
) -> None:
    mailbox = await connection.open_channel()
    await mailbox.queue_declare(OWN.mailbox(9), exclusive=True)  # of its own, so that the other name decides
    assert await allowed(connection, REFUSED) == []


async def test_the_groups_user_sends_and_reads_status_reports(
    place: Place, connection: ClientConnection
) -> None:
    """With no other permission than those on the members' exchange."""
    channel = await connection.open_channel()
    await channel.consume(OWN.queue(0), lambda deliveries: None)
    body = encode(Beat(Identity(0, "m0", "a")))

    async def send() -> None:
        while True:
            channel.publish(OWN.members, TO_OBSERVERS, body)
            await asyncio.sleep(0.1)

    sending = asyncio.create_task(send())
    as_user = LiveAdmin(place.login)
    try:
        shown = await show_group(as_user, "orders", listen_s=0.5)
    finally:
        sending.cancel()
        await as_user.close()
    assert shown.members is not UNKNOWN
    assert [one.name for one in shown.members] == ["m0"]


async def test_a_routing_key_of_its_own_choice_stays_inside_the_group(
    place: Place, connection: ClientConnection
) -> None:
    """No topic permissions are set, which lets every routing key pass, on the one topic exchange that the user may
    write to: what no queue of the group takes is kept as unrouted."""
    channel = await connection.open_channel()
    for key in ("orders-2.0.x", "orders.99.x", "#", ""):
        await publish(channel, OWN.exchange, key)
    shown = await show_group(place.admin, "orders")
    assert (shown.ready, shown.unrouted) == (0, 4)
    assert (await show_group(place.admin, "orders-2")).ready == 0
    where = path("topic-permissions", place.login.vhost, place.login.username)
    assert await place.api.get(where) in (None, [])


async def test_the_groups_user_gets_into_no_other_virtual_host_and_not_into_the_management_api(
    place: Place, rabbitmq: RabbitNode
) -> None:
    elsewhere = ConnectionSettings.parse(rabbitmq.new_vhost()).vhost
    with pytest.raises(ConnectError, match="refused"):
        await connect(replace(place.login, vhost=elsewhere))
    management = replace(place.api.places[0], user=place.login.username, password="s3cret")
    admin = LiveAdmin(place.login, ManagementApi(management))
    try:
        shown = await show_group(admin, "orders")
    finally:
        await admin.close()
    told = [problem.partition(" (")[0] for problem in problem_lines(shown)]
    assert "users, permissions, bindings, policies, prefixes: unknown" in told
    assert len(told) == 1
    assert (shown.ready, shown.dead_letters, shown.unrouted) == (0, 0, 0)


NEEDED_TO_COUNT_SINCE = (4, 3, 1)
"""Before, anybody who may enter the virtual host counts any queue there."""


async def test_a_group_with_the_permissions_of_before_shows_what_it_may_and_another_create_puts_them_right(
    place: Place, rabbitmq: RabbitNode
) -> None:
    """Before, a group's user had no permission on the dead letters and on what no queue took."""
    spec = (await show_group(place.admin, "orders")).spec
    assert spec is not None
    now = topology_of(spec, Engine(RABBITMQ, rabbitmq.version)).permissions
    without = now.write.replace("|lbg\\.orders\\.dead|lbg\\.orders\\.unrouted", "")
    before = replace(now, write=without)
    assert before != now
    await place.admin.perform(PutPermissions(spec.client_username, before, now))
    as_user = LiveAdmin(place.login)
    try:
        shown = await show_group(as_user, "orders")
        if rabbitmq.version >= NEEDED_TO_COUNT_SINCE:
            assert (shown.dead_letters, shown.unrouted) == (UNKNOWN, UNKNOWN)
            (told,) = [problem for problem in problem_lines(shown) if OWN.dead in problem]
            assert told.startswith("lbg.orders.unrouted, lbg.orders.dead: unknown (RabbitMQ from 4.3 on")
            assert "`lbg group create orders …` with an administrator's login" in told
        else:
            assert (shown.dead_letters, shown.unrouted) == (0, 0)
        assert shown.ready == 0, "what it may consume it may count, everywhere"
        assert any(
            "other permissions" in one for one in problem_lines(await show_group(place.admin, "orders"))
        )
        await create_group(place.admin, spec)
        shown = await show_group(as_user, "orders")
        assert (shown.ready, shown.dead_letters, shown.unrouted) == (0, 0, 0)
        assert not (await show_group(place.admin, "orders")).problems
    finally:
        await as_user.close()


async def test_what_may_be_written_among_dead_and_unrouted_could_come_there_anyway(
    place: Place, connection: ClientConnection
) -> None:
    """The permission to count them allows publishing too, as the group's exchanges lead there."""
    channel = await connection.open_channel()
    await publish(channel, OWN.unrouted_exchange)
    await publish(channel, OWN.exchange, "nobody takes this")
    await publish(channel, OWN.dlx)
    shown = await show_group(place.admin, "orders")
    assert (shown.ready, shown.unrouted, shown.dead_letters) == (0, 2, 1)
