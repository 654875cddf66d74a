"""A pause of ingress: nobody may publish until it is over, whatever is done to the group meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from lbg_broker import Address, ServerSettings, running
from lbg_core.admin import NotOwned, RecordUnreadable, Unsupported
from lbg_core.admin.actions import DeleteQueue, WriteRecord
from lbg_core.admin.errors import GroupUnfinished
from lbg_core.admin.group_reader import survey
from lbg_core.admin.groups import (
    adopt_group,
    create_group,
    delete_group,
    rotate_user,
    separate_publishers,
    show_group,
)
from lbg_core.admin.ingress import pause_ingress
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementSettings
from lbg_core.admin.progress import Progress, Stage
from lbg_core.admin.record import Claim, Record, kubernetes_owner
from lbg_core.admin.repartition import repartition_group
from lbg_core.client import (
    BasicProperties,
    ChannelClosed,
    ClientError,
    ConfirmingPublisher,
    ConnectionSettings,
    Nacked,
    connect,
)
from lbg_core.group import UNCOUNTED_MODES, GroupSpec, Names, recounted, routing_key
from testing.admin.cut_admin import CutAdmin, KilledError
from testing.admin.place import Place
from testing.admin.problem_lines import beside_backlog, problem_lines
from testing.needs import repeated
from testing.waiting import GUARD_S


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Place]:
    anywhere = Address("127.0.0.1", 0)
    async with running(ServerSettings(tmp_path / "data", listen=anywhere, management=anywhere)) as server:
        yield Place(
            ConnectionSettings(host="127.0.0.1", port=server.port),
            ManagementSettings.parse(f"http://{server.management_address}"),
        )


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no members here to be listened to."""
    monkeypatch.setattr("lbg_core.admin.repartition.LISTEN_S", 0.01)
    monkeypatch.setattr("lbg_core.admin.repartition.TOLD_S", 0.0)
    monkeypatch.setattr("lbg_core.admin.repartition.DRAIN_LOOK_S", 0.02)
    monkeypatch.setattr("lbg_core.admin.ingress.CLOSE_LOOK_S", 0.02)


def group_of(mode: str) -> GroupSpec:
    queue_count = 1 if mode in UNCOUNTED_MODES else 4
    return GroupSpec(
        *("orders", "orders"),
        hash_count=8,
        queue_count=queue_count,
        queue_size_mb=10,
        client_username="orders",
        mode=mode,
    )


async def is_accepted(settings: ConnectionSettings, spec: GroupSpec) -> bool:
    """True if a message that a plain client publishes is confirmed."""
    connection = await connect(settings)
    try:
        publisher = await ConfirmingPublisher.open(connection)
        await publisher.publish(
            Names(spec.name).exchange,
            routing_key(spec.hash_prefix, 0, ""),
            b"",
            properties=BasicProperties(delivery_mode=2),
        )
    except (ChannelClosed, Nacked):
        return False
    finally:
        await connection.close()
    return True


async def require_paused(
    place: Place, admin: LiveAdmin, spec: GroupSpec, *logins: ConnectionSettings
) -> None:
    assert not any([await is_accepted(one, spec) for one in (place.settings, *logins)])
    shown = await show_group(admin, spec.name, listen_s=0.01)
    assert (shown.is_ingress_paused, beside_backlog(shown)) == (True, ())
    surveyed = (await survey(admin, {"a": spec}, listen_s=0.01))["a"]
    assert not isinstance(surveyed, Exception)
    assert not [line for line in problem_lines(surveyed) if "permission" in line]


async def require_open(place: Place, admin: LiveAdmin, spec: GroupSpec, *logins: ConnectionSettings) -> None:
    assert all([await is_accepted(one, spec) for one in (place.settings, *logins)])
    shown = await show_group(admin, spec.name, listen_s=0.01)
    assert (shown.is_ingress_paused, beside_backlog(shown)) == (False, ())


def login(place: Place, username: str, password: str) -> ConnectionSettings:
    return replace(place.settings, username=username, password=password)


@pytest.mark.long
async def test_nobody_may_publish_during_a_pause_and_everybody_as_before_after_it(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    await create_group(admin, orders, password="secret")
    user = login(place, orders.client_username, "secret")
    await require_open(place, admin, orders, user)
    before = await admin.management_for("").all_permissions()
    assert await pause_ingress(admin, "orders")
    assert await pause_ingress(admin, "orders"), "once more"
    await require_paused(place, admin, orders, user)
    assert (await create_group(admin, orders)).changes == ()
    await pause_ingress(admin, "orders", is_paused=False)
    await pause_ingress(admin, "orders", is_paused=False)
    await require_open(place, admin, orders, user)
    assert await admin.management_for("").all_permissions() == before


async def test_a_connection_that_published_before_is_refused_too(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    await create_group(admin, orders)
    connection = await connect(place.settings, name="of before")
    publisher = await ConfirmingPublisher.open(connection)
    await _publish(publisher)
    await _is_listed(admin, place.settings.username, "of before")
    young = await connect(place.settings, name="not listed yet")
    publishers = (publisher, await ConfirmingPublisher.open(young))
    publishing = [asyncio.ensure_future(_until_refused(one)) for one in publishers]
    assert await pause_ingress(admin, "orders", within_s=GUARD_S)
    for one in publishing:
        with pytest.raises(ClientError):
            await asyncio.wait_for(one, GUARD_S)
    await connection.close()
    await young.close()
    assert not await is_accepted(place.settings, orders)


async def _is_listed(admin: LiveAdmin, user: str, name: str) -> None:
    """Waits for a connection of this name: RabbitMQ lists it a moment after it was opened."""
    management = admin.management_for("")
    while True:
        for one in await management.connections_of(user):
            if await management.connection_name(one) == name:
                return
        await asyncio.sleep(0.05)


async def _publish(publisher: ConfirmingPublisher) -> None:
    await publisher.publish("lbg.orders", routing_key("orders", 0, ""), b"", properties=BasicProperties())


async def _until_refused(publisher: ConfirmingPublisher) -> None:
    while True:
        await _publish(publisher)
        await asyncio.sleep(0.01)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["Exclusive", "Partitioned", "MessageGroups", "Sessions"])
async def test_killed_after_any_change_it_can_be_repeated(embedded: Place, mode: str) -> None:
    spec = group_of(mode)
    async with embedded.administered() as admin:
        await create_group(admin, spec)
        before = await admin.management_for("").all_permissions()
        for is_paused in (True, False) * 2:
            changes, was_killed = 0, True
            while was_killed:
                cut = CutAdmin(embedded, changes=changes // 2, half=changes % 2 == 1)
                try:
                    await pause_ingress(cut, "orders", is_paused=is_paused)
                    was_killed = False
                except KilledError:
                    changes += 1
                finally:
                    await cut.close()
                if was_killed and changes % 3 == 0:  # the one that did it all, and back
                    await pause_ingress(admin, "orders", is_paused=is_paused)
                    assert await is_accepted(embedded.settings, spec) is not is_paused
                    await pause_ingress(admin, "orders", is_paused=not is_paused)
                    assert await is_accepted(embedded.settings, spec) is is_paused
            assert changes >= 2
        await require_open(embedded, admin, spec)
        assert await admin.management_for("").all_permissions() == before


@pytest.mark.long
async def test_half_of_a_pause_and_half_of_its_end_are_named_with_the_remedy(embedded: Place) -> None:
    spec = group_of("Exclusive")
    async with embedded.administered() as admin:
        await create_group(admin, spec)

        async def problems_after(changes: int, *, is_paused: bool) -> list[str]:
            cut = CutAdmin(embedded, changes=changes, half=False)
            with pytest.raises(KilledError):
                await pause_ingress(cut, "orders", is_paused=is_paused)
            await cut.close()
            return problem_lines(await show_group(admin, "orders", listen_s=0.01))

        may = "user orders may publish though ingress is paused: `lbg group pause orders --ingress` completes the pause"
        assert await problems_after(1, is_paused=True) == [may]
        await pause_ingress(admin, "orders")
        assert await problems_after(1, is_paused=False) == [may]
        await pause_ingress(admin, "orders", is_paused=False)
        await require_open(embedded, admin, spec)


@pytest.mark.long
async def test_changes_of_the_group_during_a_pause_leave_it_paused(
    place: Place, admin: LiveAdmin, orders: GroupSpec, unique: str
) -> None:
    await create_group(admin, orders, password="one")
    await pause_ingress(admin, "orders")
    await rotate_user(admin, "orders", username=f"{unique}-2", password="two")
    await separate_publishers(admin, "orders", username=f"{unique}-p", password="three")
    rotated = orders.altered(client_username=f"{unique}-2")
    logins = [
        login(place, orders.client_username, "one"),
        login(place, f"{unique}-2", "two"),
        login(place, f"{unique}-p", "three"),
    ]
    assert not any([await is_accepted(one, orders) for one in (place.settings, *logins)])
    steps: list[Progress] = []
    await repartition_group(admin, "orders", 6, timeout_s=GUARD_S, offline=True, report=steps.append)
    assert steps[-1].stage is Stage.INGRESS_PAUSED
    six = recounted(rotated, 6)
    assert not any([await is_accepted(one, six) for one in (place.settings, *logins)])
    assert (await create_group(admin, six)).changes == ()
    await create_group(admin, six, claim=Claim(kubernetes_owner("c", "o"), adopts=True))
    with pytest.raises(NotOwned):
        await pause_ingress(admin, "orders", is_paused=False)
    await adopt_group(admin, "orders")
    assert not any([await is_accepted(one, six) for one in (place.settings, *logins)])
    await pause_ingress(admin, "orders", is_paused=False)
    assert all([await is_accepted(one, six) for one in (place.settings, *logins)])
    await delete_group(admin, "orders", force=True)


async def test_a_new_partitioned_group_that_is_paused_is_repartitioned_and_stays_so(embedded: Place) -> None:
    spec = group_of("Partitioned")
    async with embedded.administered() as admin:
        await create_group(admin, spec)
        await pause_ingress(admin, "orders")
        await repartition_group(admin, "orders", 6, timeout_s=GUARD_S)
        await require_paused(embedded, admin, recounted(spec, 6))
        await pause_ingress(admin, "orders", is_paused=False)
        await require_open(embedded, admin, recounted(spec, 6))


@pytest.mark.long
@pytest.mark.parametrize("first", repeated([1, 2]))
@pytest.mark.parametrize("mode", ["Exclusive", "Partitioned"])
async def test_a_pause_that_ends_while_the_number_of_queues_changes_leaves_ingress_closed(
    embedded: Place, mode: str, first: int
) -> None:
    spec = group_of(mode)
    async with embedded.administered() as admin:
        changes, was_killed = first, True
        while was_killed:
            await create_group(admin, spec)
            await pause_ingress(admin, "orders")
            cut = CutAdmin(embedded, changes=changes, half=False)
            try:
                await repartition_group(cut, "orders", 6, timeout_s=GUARD_S, offline=True)
                was_killed = False
            except KilledError:
                changes += 2
            finally:
                await cut.close()
            await pause_ingress(admin, "orders", is_paused=False)
            if was_killed and mode == "Exclusive":
                assert not await is_accepted(embedded.settings, spec)
            await repartition_group(admin, "orders", 6, timeout_s=GUARD_S, offline=True)
            await require_open(embedded, admin, recounted(spec, 6))
            await delete_group(admin, "orders", force=True)
        assert changes > 4


async def test_a_group_that_is_deleted_during_a_pause_leaves_everybody_the_permissions_they_had(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    management = admin.management_for("")
    before = await management.all_permissions()
    await create_group(admin, orders)
    await pause_ingress(admin, "orders")
    assert await management.all_permissions() != before
    await delete_group(admin, "orders")
    assert await management.all_permissions() == before


@pytest.mark.long
async def test_pauses_of_many_groups_at_once_leave_everybody_the_permissions_they_had(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    """An administrator's permission has what is taken out of it for each of them, and is written as a whole."""
    names = [f"group-{number}" for number in range(4)]
    for name in names:
        await create_group(admin, replace(orders, name=name, hash_prefix=name), with_user=False)
    async with place.administered() as other:
        admins = [admin, other] * 2
        management = admin.management_for("")
        before = await management.permissions("guest")
        for is_paused in (True, False):
            await asyncio.gather(
                *(
                    pause_ingress(one, name, is_paused=is_paused, within_s=0.0)
                    for one, name in zip(admins, names, strict=True)
                )
            )
        assert await management.permissions("guest") == before


async def test_without_a_management_api_it_is_refused_before_anything_is_changed(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    await create_group(admin, orders)
    without_api = LiveAdmin(place.settings)
    with pytest.raises(Unsupported, match="ingress can only be paused: needs the management API"):
        await pause_ingress(without_api, "orders")
    await without_api.close()
    await require_open(place, admin, orders)


@pytest.mark.parametrize("is_paused", [True, False])
async def test_a_group_without_its_record_is_neither_paused_nor_resumed(
    place: Place, admin: LiveAdmin, orders: GroupSpec, is_paused: bool
) -> None:
    await create_group(admin, orders)
    before = await admin.management_for("").all_permissions()
    await admin.perform(DeleteQueue(Names("orders").config))
    with pytest.raises(RecordUnreadable, match="it is missing") as refused:
        await pause_ingress(admin, "orders", is_paused=is_paused)
    assert not refused.value.retryable
    assert await admin.management_for("").all_permissions() == before
    await delete_group(admin, "orders")


async def test_ingress_of_an_unfinished_group_is_not_paused(admin: LiveAdmin, orders: GroupSpec) -> None:
    await create_group(admin, orders)
    await admin.perform(WriteRecord("orders", Record(orders.to_unfinished())))
    with pytest.raises(GroupUnfinished):
        await pause_ingress(admin, "orders")
    await delete_group(admin, "orders")
