"""A create that is killed after any of its changes, on both engines: the next one finishes it, or undoes it."""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import suppress
from dataclasses import replace

import pytest

from lbg_core.admin import Busy, GroupNotFound, RecordUnreadable
from lbg_core.admin.groups import Created, create_group, delete_group, show_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementSettings
from lbg_core.admin.record import read_group
from lbg_core.client import ConnectionSettings, connect
from lbg_core.group import GroupSpec, Publishers, topology_of
from lbg_core.publisher import GroupPublisher
from testing.admin.cut_admin import CutAdmin, KilledError
from testing.admin.place import Place
from testing.broker.embedded import EmbeddedBroker
from testing.needs import repeated

PARTS = 4
"""The points of one test's run are every fourth: a create takes a second where each step is agreed on."""


def publishers_of(spec: GroupSpec) -> Publishers:
    return Publishers(f"{spec.client_username}.publisher")


async def create(admin: LiveAdmin, spec: GroupSpec) -> Created:
    """With a user of members and one of publishers."""
    return await create_group(admin, spec, publishers=publishers_of(spec))


async def killed_after(place: Place, spec: GroupSpec, changes: int, *, half: bool) -> str | None:
    """The change that it was killed at, None when it was over before. `half`: that was done, and its answer lost."""
    cut = CutAdmin(place, changes=changes, half=half)
    try:
        with suppress(KilledError):
            await create(cut, spec)
    finally:
        await cut.close()
    return None if cut.died_at is None else str(cut.died_at)


async def require_whole(place: Place, admin: LiveAdmin, spec: GroupSpec, created: Created | None) -> None:
    """All is as if it had been made at once, and its users can use it."""
    assert (await create(admin, spec)).changes == ()
    observed = await admin.observe(spec.name)
    topology = topology_of(spec, observed.engine, publishers_of(spec))
    bindings = {one for one in observed.bindings if one.queue in observed.queues}
    assert bindings == set(topology.bindings)
    assert {one.name for one in topology.queues} == set(observed.queues)
    assert observed.publishers == publishers_of(spec)
    assert observed.users_of(spec.name) == [spec.client_username, observed.publishers.username]
    assert (await show_group(admin, spec.name, listen_s=0.01)).problems == ()
    if created is not None and created.password is not None:
        assert await read_as(place, spec, created.password) == spec
        assert created.publisher_password is not None
        publisher = replace(
            place.settings, username=observed.publishers.username, password=created.publisher_password
        )
        async with GroupPublisher(publisher, group=spec.name) as publishing:
            await publishing.publish(key="k", body=b"x", topic="")


async def read_as(place: Place, spec: GroupSpec, password: str) -> GroupSpec:
    login = ConnectionSettings(
        host=place.settings.host,
        port=place.settings.port,
        vhost=place.settings.vhost,
        username=spec.client_username,
        password=password,
    )
    connection = await connect(login)
    try:
        return await read_group(await connection.open_channel(), spec.name)
    finally:
        await connection.close()


@pytest.mark.long
@pytest.mark.parametrize("part", repeated(range(PARTS)))
async def test_killed_after_any_change_the_next_create_finishes_it(
    place: Place, admin: LiveAdmin, orders: GroupSpec, part: int
) -> None:
    changes = part
    while at := await killed_after(place, orders, changes, half=(half := changes % 8 >= PARTS)):
        is_made = half and at == "write the record of group orders"
        if not is_made:
            await require_no_group(place, orders)
        created = await create(admin, orders)
        generated = (created.password, created.publisher_password)
        assert (created.was_there, *(one is None for one in generated)) == (is_made, is_made, is_made), at
        await require_whole(place, admin, orders, created)
        await delete_group(admin, orders.name, force=True)
        changes += PARTS
    assert changes > 10
    await require_whole(place, admin, orders, None)
    await delete_group(admin, orders.name, force=True)


async def require_no_group(place: Place, spec: GroupSpec) -> None:
    """Nobody takes what is half made for the group."""
    connection = await connect(place.settings)
    try:
        with pytest.raises((GroupNotFound, RecordUnreadable), match="`lbg group create orders …`"):
            await read_group(await connection.open_channel(), spec.name)
    finally:
        await connection.close()


@pytest.mark.long
@pytest.mark.parametrize("part", repeated(range(PARTS)))
async def test_killed_after_any_change_a_create_with_other_attributes_has_its_own(
    place: Place, admin: LiveAdmin, orders: GroupSpec, part: int
) -> None:
    """Another number of queues, another hash function, which no queue shows, and another user."""
    other = orders.altered(queue_count=6, hash_function="java", client_username=f"{orders.client_username}-2")
    changes = part
    while await killed_after(place, other, changes, half=changes % 8 >= PARTS and changes < 16):
        created = await create(admin, orders)
        assert not created.was_there, changes
        await require_whole(place, admin, orders, created)
        await delete_group(admin, orders.name, force=True)
        changes += PARTS
    assert changes > 10
    await delete_group(admin, orders.name, force=True)


@pytest.mark.long
async def test_without_a_management_api_a_killed_create_is_finished_too(
    place: Place, orders: GroupSpec
) -> None:
    admin = LiveAdmin(place.settings, None)
    try:
        for changes in (1, 2, 6, 12, 15):
            cut = CutAdmin(place, changes=changes, half=False)
            with pytest.raises(KilledError):
                await create_group(cut, orders, with_user=False)
            await cut.close()
            await create_group(admin, orders, with_user=False)
            async with place.administered() as looking:
                assert (await create_group(looking, orders, with_user=False)).changes == ()
            await delete_group(admin, orders.name, force=True, with_user=False)
    finally:
        await admin.close()


@pytest.mark.parametrize(
    "at_s", repeated(random.Random(seed).uniform(0.02, 0.25) for seed in range(4)), ids=range(4)
)
async def test_a_process_that_is_killed_at_any_time_is_finished_by_the_same_command(
    own_broker: EmbeddedBroker, at_s: float
) -> None:
    """SIGKILL of the command itself, at random moments of its life."""
    command = [sys.executable, "-m", "lbgroup", "group", "create", "orders", "--queue-count", "40"]
    where = ["--broker", own_broker.url, "--management", own_broker.management_url]
    pipes = {"stdout": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.DEVNULL}
    process = await asyncio.create_subprocess_exec(*command, *where, **pipes)
    await asyncio.sleep(at_s)
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
    place = Place(
        ConnectionSettings.parse(own_broker.url), ManagementSettings.parse(own_broker.management_url)
    )
    spec = GroupSpec("orders", queue_count=40)
    async with place.administered() as admin:
        while True:
            try:
                created = await create(admin, spec)
                break
            except Busy:  # until the broker has noticed
                await asyncio.sleep(0.01)
        await require_whole(place, admin, spec, created)
