"""Groups in native modes on the embedded broker itself: what the fake stands for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from lbg_core.admin.actions import ActOnQueue
from lbg_core.admin.describe import Description
from lbg_core.admin.errors import StillInUse
from lbg_core.admin.group_reader import survey
from lbg_core.admin.groups import close_group, create_group, delete_group, rotate_user, show_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.snapshot import CLOSING, LIVE, STRANDED, UNKNOWN, MessageGroupsStatus, SessionsStatus
from lbg_core.amqp import BasicProperties
from lbg_core.client import AccessRefused, Channel, ClientConnection, ConfirmingPublisher, Delivery, connect
from lbg_core.group import HEADER_KEY, NATIVE_MODES, GroupSpec, Names, hash_of, queue_of, routing_key
from testing.admin.native_groups import spec_in
from testing.admin.place import Place
from testing.waiting import until

QUICK = {"rebalance_delay_s": 0.1}
pytestmark = pytest.mark.parametrize("place", ["embedded"], indirect=True)
ORDERS = Names("orders")


@asynccontextmanager
async def connected(place: Place) -> AsyncIterator[ClientConnection]:
    connection = await connect(place.settings, name="test")
    try:
        yield connection
    finally:
        await connection.close()


async def published(connection: ClientConnection, spec: GroupSpec, *keys: str) -> None:
    channel = await connection.open_channel()
    await channel.confirm_select()
    publisher = ConfirmingPublisher(channel)
    for key in keys:
        hash_ = hash_of(key, spec.hash_count, spec.hash_function)
        await publisher.publish(
            Names(spec.name).exchange,
            routing_key(spec.hash_prefix, hash_, ""),
            key.encode(),
            properties=BasicProperties(headers={HEADER_KEY: key}, delivery_mode=2),
        )


async def holding(
    connection: ClientConnection, index: int, **arguments: Any
) -> tuple[Channel, list[Delivery]]:
    """A consumer of the group's queue, tagged as a member's is, that acknowledges nothing by itself."""
    held: list[Delivery] = []
    channel = await connection.open_channel()
    await channel.consume(
        ORDERS.parent,
        held.extend,
        prefetch_count=100,
        consumer_tag=ORDERS.mailbox(index),
        arguments={name.replace("_", "-"): value for name, value in arguments.items()},
    )
    return channel, held


async def shown(admin: LiveAdmin) -> Description:
    return await show_group(admin, "orders", listen_s=0.0)


@pytest.mark.parametrize("mode", NATIVE_MODES)
async def test_what_was_created_is_whole_is_surveyed_and_leaves_nothing(
    admin: LiveAdmin, mode: str, unique: str
) -> None:
    spec = spec_in(mode, username=unique, **(QUICK if mode == "Partitioned" else {}))

    await create_group(admin, spec)

    assert (await create_group(admin, spec)).changes == ()
    assert (await shown(admin)).problems == ()
    surveyed = (await survey(admin, {"a": spec}, listen_s=0.0))["a"]
    assert isinstance(surveyed, Description)
    assert surveyed.native == (await shown(admin)).native
    await delete_group(admin, "orders")
    assert (await admin.observe("orders", desired=spec)).is_empty


@pytest.mark.long
@pytest.mark.parametrize("mode", NATIVE_MODES)
async def test_lag_is_what_waits_and_what_is_not_acknowledged(
    admin: LiveAdmin, place: Place, mode: str, unique: str
) -> None:
    spec = spec_in(mode, username=unique, **(QUICK if mode == "Partitioned" else {}))
    await create_group(admin, spec)
    async with connected(place) as connection:
        await published(connection, spec, *"abcdefg")
        assert await admin.lag_reader.lags({"a": spec}, max_age_s=0) == {"a": 7}
        channel, held = await holding(connection, 0, **({"x_session": "m0"} if mode == "Sessions" else {}))
        await until(lambda: len(held) == 7)
        assert await admin.lag_reader.lags({"a": spec}, max_age_s=0) == {"a": 7}
        channel.ack(held[-1].delivery_tag, multiple=True)
        await channel.close()
        assert await admin.lag_reader.lags({"a": spec}, max_age_s=0) == {"a": 0}


@pytest.mark.parametrize("mode", NATIVE_MODES)
async def test_the_groups_user_may_publish_and_consume_before_and_after_its_password_changes(
    admin: LiveAdmin, place: Place, mode: str, unique: str
) -> None:
    spec = spec_in(mode, username=unique, **(QUICK if mode == "Partitioned" else {}))
    created = await create_group(admin, spec)
    rotated = await rotate_user(admin, "orders")
    assert rotated.password is not None
    assert rotated.password != created.password
    login = replace(place.settings, username=unique, password=rotated.password)
    connection = await connect(login, name="member")
    await published(connection, spec, "a")
    session = {"x_session": "m0"} if mode == "Sessions" else {}
    _, held = await holding(connection, 0, **session)
    await until(lambda: len(held) == 1)
    for forbidden in (ORDERS.dead, ORDERS.queue(0)):
        channel = await connection.open_channel()
        with pytest.raises(AccessRefused):
            await channel.consume(forbidden, lambda deliveries: None)
    await connection.close()


@pytest.mark.long
async def test_without_the_management_api_lag_is_what_waits_and_what_members_say(
    admin: LiveAdmin, place: Place, unique: str
) -> None:
    spec = spec_in("Partitioned", username=unique, rebalance_delay_s=0.1)
    await create_group(admin, spec)
    alone = LiveAdmin(place.settings)
    async with connected(place) as connection:
        await published(connection, spec, *"abc")
        assert await alone.lag_reader.lags({"a": spec}, max_age_s=0) == {"a": 3}
        await holding(connection, 0)
        assert await alone.lag_reader.lags({"a": spec}, max_age_s=0) == {"a": UNKNOWN}, (
            "it is no member, and says nothing"
        )
    await alone.close()


async def test_keys_are_in_the_partitions_that_their_queues_would_have(
    admin: LiveAdmin, place: Place, unique: str
) -> None:
    spec = spec_in("Partitioned", username=unique, hash_function="murmur2")
    await create_group(admin, spec)
    keys = [f"key-{number}" for number in range(20)]
    async with connected(place) as connection:
        await published(connection, spec, *keys)

    partitions = (await shown(admin)).services

    assert isinstance(partitions, tuple)
    expected = [queue_of(hash_of(key, spec.hash_count, "murmur2"), 2) for key in keys]
    assert [one.ready for one in partitions] == [expected.count(0), expected.count(1)]
    assert [one.status for one in partitions] == ["Unassigned", "Unassigned"]


@pytest.mark.long
async def test_partitions_are_at_the_consumers_that_the_broker_gave_them_to(
    admin: LiveAdmin, place: Place, unique: str
) -> None:
    await create_group(admin, spec_in("Partitioned", username=unique, rebalance_delay_s=0.1))
    async with connected(place) as connection:
        await holding(connection, 0)
        await holding(connection, 1)

        description = await _shared(admin)

        assert description.rebalance == "Ready"
        assert description.unserved == []


async def _shared(admin: LiveAdmin) -> Description:
    """The group once its two partitions are at two consumers."""
    for _ in range(200):
        description = await shown(admin)
        partitions = description.services
        assert isinstance(partitions, tuple)
        if len({one.consumer for one in partitions} - {None}) == 2:
            return description
        await asyncio.sleep(0.05)
    raise TimeoutError("the partitions are not shared out")


async def test_an_ingress_that_somebody_closed_is_opened(admin: LiveAdmin, unique: str) -> None:
    spec = spec_in("Partitioned", username=unique)
    await create_group(admin, spec)
    await admin.perform(ActOnQueue(ORDERS.parent, "ingress", {"open": False}))
    assert (await shown(admin)).problems

    repaired = await create_group(admin, spec)

    assert [str(one) for one in repaired.changes] == ["ingress open=True on queue lbg.orders.q"]
    assert (await shown(admin)).problems == ()
    assert (await create_group(admin, spec)).changes == ()


async def test_message_groups_are_counted(admin: LiveAdmin, place: Place, unique: str) -> None:
    spec = spec_in("MessageGroups", username=unique)
    await create_group(admin, spec)
    async with connected(place) as connection:
        await published(connection, spec, "a", "b", "a")
        _, held = await holding(connection, 0)
        await until(lambda: len(held) == 3)

        assert (await shown(admin)).native == MessageGroupsStatus(known=2, busy=2)


@pytest.mark.long
async def test_sessions_are_live_stranded_and_closed(admin: LiveAdmin, place: Place, unique: str) -> None:
    spec = spec_in("Sessions", username=unique)
    await create_group(admin, spec)
    async with connected(place) as connection:
        leaver, _ = await holding(connection, 0, x_session="m0")
        _, held = await holding(connection, 1, x_session="m1")
        await published(connection, spec, *"abcd")
        await until(lambda: len(held) == 2)
        await leaver.close()
        seen = (await shown(admin)).native
        assert isinstance(seen, SessionsStatus)
        assert {one.session: (one.state, one.messages) for one in seen.sessions} == {
            "m0": (STRANDED, 2),
            "m1": (LIVE, 2),
        }

        left = (await close_group(admin, "orders", session="m0")).native
        assert isinstance(left, SessionsStatus)
        assert [one.session for one in left.sessions if one.state == CLOSING] == ["m0"]
        assert not left.closed
        left = (await close_group(admin, "orders")).native
        assert isinstance(left, SessionsStatus)
        assert left.closed
        with pytest.raises(
            StillInUse, match="close it with `lbg group close orders` and let its sessions end"
        ):
            await delete_group(admin, "orders")
