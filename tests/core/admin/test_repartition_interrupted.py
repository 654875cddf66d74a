"""An offline repartition that is killed after any of its changes: the group says so, and a second run finishes or takes
back."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from lbg_broker import Address, ServerSettings, running
from lbg_core.admin import Busy, GroupDiffers, NotDrained, UnderWay
from lbg_core.admin.actions import PutPermissions
from lbg_core.admin.groups import create_group, delete_group, enable_parking, rotate_user, show_group
from lbg_core.admin.ingress import pause_ingress
from lbg_core.admin.ingress_permissions import is_without
from lbg_core.admin.key_move import KeyMoveRun
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings
from lbg_core.admin.member_requests import pause_group
from lbg_core.admin.parked_messages import administration, open_parked_stream
from lbg_core.admin.progress import Progress, Stage
from lbg_core.admin.repartition import repartition_group as changed
from lbg_core.admin.snapshot import UNKNOWN, QueueStatus
from lbg_core.client import (
    BasicProperties,
    ChannelClosed,
    ConfirmingPublisher,
    ConnectionSettings,
    Nacked,
    connect,
)
from lbg_core.group import (
    GroupSpec,
    Names,
    Permissions,
    SpecError,
    binding_key,
    hash_of,
    queue_of,
    recounted,
    routing_key,
    topology_of,
)
from lbg_core.group.parked_keys import ParkEntry
from testing.admin.cut_admin import CutAdmin, KilledError
from testing.admin.place import Place
from testing.admin.problem_lines import beside_backlog, problem_lines
from testing.broker.embedded import EmbeddedBroker
from testing.exploration import over_seeds
from testing.needs import repeated
from testing.waiting import GUARD_S

repartition_group = partial(changed, offline=True)

MODES = ["Exclusive", "Partitioned"]
PARTS = 5
"""Odd: in each part every other kill comes when the last change is done."""


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """The embedded broker: here it is fast enough for every point."""
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


def group_of(mode: str) -> GroupSpec:
    return GroupSpec(
        "orders", "orders", hash_count=8, queue_count=4, queue_size_mb=10, client_username="orders", mode=mode
    )


async def published(place: Place, spec: GroupSpec, *, queue: int = 1) -> bool:
    """True if the group accepts a message for the queue or partition of this number."""
    keys = (f"key-{number}" for number in range(100))
    key, hash_ = next((key, hash_of(key, 8)) for key in keys if queue_of(hash_of(key, 8), 4) == queue)
    connection = await connect(place.settings)
    try:
        publisher = await ConfirmingPublisher.open(connection)
        await publisher.publish(
            Names(spec.name).exchange,
            routing_key(spec.hash_prefix, hash_, ""),
            b"",
            properties=BasicProperties(headers={"lbg-key": key}, delivery_mode=2),
        )
    except (ChannelClosed, Nacked):
        return False
    finally:
        await connection.close()
    return True


async def require_whole(place: Place, admin: LiveAdmin, spec: GroupSpec) -> None:
    """All is as if the group had been made with these attributes, and it takes messages."""
    assert (await create_group(admin, spec)).changes == ()
    observed = await admin.observe(spec.name)
    topology = topology_of(spec, observed.engine)
    assert observed.bindings == set(topology.bindings)
    assert {one.name for one in topology.queues} == set(observed.queues)
    assert beside_backlog(await show_group(admin, spec.name, listen_s=0.01)) == ()
    permissions = await admin.management_for("").all_permissions()
    assert not any(is_without(one.write, Names(spec.name).exchange) for one in permissions.values())
    assert await published(place, spec)


async def killed_after(place: Place, count: int, changes: int, *, half: bool) -> bool:
    """True if it was killed, False if it completed before."""
    cut = CutAdmin(place, changes=changes, half=half)
    try:
        await repartition_group(cut, "orders", count, timeout_s=GUARD_S)
    except KilledError:
        return True
    finally:
        await cut.close()
    return False


@pytest.mark.long
@pytest.mark.parametrize("part", repeated(range(PARTS)))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("count", "then", "stride"), [(6, 6, 1), (2, 4, 2)])
async def test_killed_after_any_change_a_second_run_finishes_or_takes_back(
    place: Place, mode: str, count: int, then: int, stride: int, part: int
) -> None:
    """Every other time the last change is done as well, and its answer lost. Each part has every fifth of them."""
    spec = group_of(mode)
    admin = place.admin()
    changes, kills = part * stride, 0
    while True:
        await create_group(admin, spec)
        was_killed = await killed_after(place, count, changes, half=changes // stride % 2 == 1)
        await repartition_group(admin, "orders", then, timeout_s=GUARD_S)
        await require_whole(place, admin, recounted(spec, then))
        await delete_group(admin, "orders", force=True)
        if not was_killed:
            break
        kills += 1
        changes += PARTS * stride
    assert kills or part == PARTS - 1, "the shortest change has one point for each part but the last"
    await admin.close()


@pytest.mark.parametrize("mode", MODES)
async def test_while_it_is_under_way_show_create_and_rotate_say_so(place: Place, mode: str) -> None:
    spec = group_of(mode)
    admin = place.admin()
    await create_group(admin, spec)
    assert await killed_after(place, 6, 4, half=False)
    said = "on its way from 4 to 6 queues .* --queues 6` finishes it, --queues 4 takes it back"
    with pytest.raises(UnderWay, match=said):
        await create_group(admin, spec)
    with pytest.raises(UnderWay, match=said):
        await rotate_user(admin, "orders")
    shown = await show_group(admin, "orders", listen_s=0.01)
    assert shown.to_json()["repartition"] == 6
    (problem,) = problem_lines(shown)
    assert "takes no messages until it is there" in problem
    assert not await published(place, spec)
    await admin.close()


async def test_a_group_that_is_deleted_under_way_leaves_everybody_the_permissions_they_had(
    place: Place,
) -> None:
    admin = place.admin()
    management = admin.management_for("")
    before = await management.all_permissions()
    await create_group(admin, group_of("Exclusive"))
    assert await killed_after(place, 6, 4, half=False)
    assert await management.all_permissions() != before
    await delete_group(admin, "orders")
    assert await management.all_permissions() == before
    await admin.close()


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
async def test_what_is_not_drained_in_time_is_said_and_everything_is_as_before(
    place: Place, mode: str
) -> None:
    spec = group_of(mode)
    admin = place.admin()
    await create_group(admin, spec)
    assert await published(place, spec)
    with pytest.raises(NotDrained, match=r"not drained within 0\.2 s.* has 1 ready, 0 unacknowledged"):
        await repartition_group(admin, "orders", 6, timeout_s=0.2)
    await require_whole(place, admin, spec)
    await admin.close()


@pytest.mark.long
async def test_a_paused_group_that_is_not_drained_says_what_resumes_it(place: Place) -> None:
    spec = group_of("Exclusive")
    admin = place.admin()
    await create_group(admin, spec)
    assert await published(place, spec)
    await pause_group(admin, "orders", within_s=0.0)
    with pytest.raises(NotDrained, match="members process nothing: `lbg group resume orders` resumes them"):
        await repartition_group(admin, "orders", 6, timeout_s=0.2)
    await admin.close()


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
async def test_who_is_interrupted_while_it_drains_changes_nothing(place: Place, mode: str) -> None:
    spec = group_of(mode)
    admin = place.admin()
    await create_group(admin, spec)
    assert await published(place, spec)
    waits = asyncio.Event()

    def tell(progress: Progress) -> None:
        if progress.stage is Stage.WAITING:
            waits.set()

    task = asyncio.create_task(repartition_group(admin, "orders", 6, timeout_s=GUARD_S, report=tell))
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await require_whole(place, admin, spec)
    await admin.close()


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
async def test_messages_in_queues_that_go_are_deleted_only_when_asked_for(place: Place, mode: str) -> None:
    spec = group_of(mode)
    admin = place.admin()
    await create_group(admin, spec)
    assert await published(place, spec, queue=3)
    with pytest.raises(NotDrained):
        await repartition_group(admin, "orders", 3, timeout_s=0.1)
    assert (await show_group(admin, "orders", listen_s=0.01)).ready == 1
    await repartition_group(admin, "orders", 3, timeout_s=0.1, discard=True)
    assert (await show_group(admin, "orders", listen_s=0.01)).ready == 0
    await require_whole(place, admin, recounted(spec, 3))
    await admin.close()


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
async def test_messages_in_queues_that_stay_are_always_waited_for(place: Place, mode: str) -> None:
    spec = group_of(mode)
    admin = place.admin()
    await create_group(admin, spec)
    assert await published(place, spec, queue=0)
    with pytest.raises(NotDrained):
        await repartition_group(admin, "orders", 3, timeout_s=0.1, discard=True)
    await require_whole(place, admin, spec)
    await admin.close()


@pytest.mark.parametrize(
    ("mode", "count", "why"),
    [
        ("Exclusive", 9, "must be at most hash_count"),
        ("Exclusive", 2, r"max_clients 3: must be at most queue_count \(2\): HC >= QC >= CC"),
        ("MessageGroups", 2, "has one queue for all members"),
        ("Sessions", 2, "has one queue for all members"),
    ],
)
async def test_a_number_that_the_group_cannot_have_is_refused_with_the_rule(
    place: Place, mode: str, count: int, why: str
) -> None:
    admin = place.admin()
    counted = {"queue_count": 4, "max_clients": 3} if mode == "Exclusive" else {}
    spec = GroupSpec(
        "orders", "orders", hash_count=8, queue_size_mb=10, client_username="orders", mode=mode, **counted
    )
    await create_group(admin, spec)
    with pytest.raises(SpecError, match=why):
        await repartition_group(admin, "orders", count, timeout_s=1.0)
    assert (await create_group(admin, spec)).changes == ()
    await admin.close()


async def test_the_number_it_has_is_nothing_to_do(place: Place) -> None:
    admin = place.admin()
    await create_group(admin, group_of("Exclusive"))
    assert not (await repartition_group(admin, "orders", 4, timeout_s=1.0)).is_changed
    await admin.close()


@pytest.mark.long
async def test_a_create_with_another_number_names_the_command(place: Place) -> None:
    admin = place.admin()
    await create_group(admin, group_of("Exclusive"))
    with pytest.raises(
        GroupDiffers, match="`lbg group repartition orders --queues 6` gives it that many queues"
    ):
        await create_group(admin, recounted(group_of("Exclusive"), 6))
    await admin.close()


@over_seeds(3)
async def test_a_process_that_is_killed_at_any_time_is_finished_by_the_next(
    own_broker: EmbeddedBroker, seed: int
) -> None:
    """SIGKILL of the command itself, at random moments of its life."""
    place = Place(
        ConnectionSettings.parse(own_broker.url), ManagementSettings.parse(own_broker.management_url)
    )
    admin = place.admin()
    await create_group(admin, group_of("Exclusive"))
    command = [
        sys.executable,
        "-m",
        "lbgroup",
        "group",
        "repartition",
        "orders",
        "--queues",
        "6",
        "--offline",
    ]
    where = ["--broker", own_broker.url, "--management", own_broker.management_url]
    process = await asyncio.create_subprocess_exec(*command, *where, stderr=asyncio.subprocess.DEVNULL)
    await asyncio.sleep(random.Random(seed).uniform(0.3, 1.6))
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
    async with asyncio.timeout(GUARD_S):
        while True:  # until the broker has noticed
            try:
                await repartition_group(admin, "orders", 6, timeout_s=GUARD_S)
                break
            except Busy:
                await asyncio.sleep(0.01)
    await require_whole(place, admin, recounted(group_of("Exclusive"), 6))
    await admin.close()


@pytest.mark.long
async def test_who_loses_the_group_to_another_run_leaves_it_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock goes with its connection; whoever takes it then may have opened the group again already."""
    monkeypatch.setattr("lbg_core.admin.group_locks.LOCK_AGAIN_S", 0.2)
    spec = group_of("Exclusive")
    first, second = place.admin(), place.admin()
    await create_group(first, spec)
    assert await published(place, spec)
    waits = asyncio.Event()

    def tell(progress: Progress) -> None:
        if progress.stage is Stage.WAITING:
            waits.set()

    task = asyncio.create_task(repartition_group(first, "orders", 6, timeout_s=GUARD_S, report=tell))
    await waits.wait()
    async with asyncio.timeout(GUARD_S):
        (await first.amqp.link.connection()).abort()
        while True:  # as soon as the broker has noticed
            try:
                async with second.lock("orders"):
                    with pytest.raises(Busy):
                        await task
                break
            except Busy:
                await asyncio.sleep(0.01)
    await first.close()
    await second.close()


@pytest.mark.long
async def test_killed_between_the_bindings_no_parked_message_is_released_to_two_queues(place: Place) -> None:
    """Its hash leads to the former queue and to the new one, and an administrator has permitted publishing again."""
    spec = group_of("Exclusive")
    key = next(key for key in map(str, range(100)) if hash_of(key, 8) == 5)
    async with place.administered() as admin:
        await create_group(admin, spec)
        await enable_parking(admin, "orders")
        async with open_parked_stream([place.settings], "orders") as stream:
            publisher = await ConfirmingPublisher.open(stream.connection)
            headers = {"lbg-key": key, "lbg-publisher": "p", "lbg-seq": 0, "lbg-parked-copy": "copy"}
            properties = BasicProperties(headers=headers, delivery_mode=2)
            await publisher.publish(
                stream.names.parking, "orders.5.t", b"x", properties=properties, mandatory=True
            )
            await stream.write([ParkEntry(key, ("p", 5, 0), 1, "cause", "copy")])
        assert await killed_after(place, 6, 10, half=False)
        await admin.perform(PutPermissions("guest", Permissions(".*", ".*", ".*")))
        bindings = (await admin.observe("orders")).bindings
        assert bindings is not UNKNOWN
        leads_to = {one.queue for one in bindings if one.routing_key == binding_key("orders", 5)}
        assert leads_to == {"lbg.orders.q.1", "lbg.orders.q.5"}

        remedy = "`lbg group repartition orders --queues 6` finishes it, --queues 4 takes it back"
        for released in (
            administration.release(admin, "orders", None, timeout_s=0.1),
            administration.replay_first(admin, "orders", key),
        ):
            with pytest.raises(UnderWay, match=remedy):
                await released
        parked = await administration.list_parked(admin, "orders")
        assert [(one.key, one.messages, one.is_released) for one in parked.keys] == [(key, 1, False)]

        await repartition_group(admin, "orders", 6, timeout_s=GUARD_S)
        assert await administration.replay_first(admin, "orders", key) == ("p", 5, 0)
        observed = await admin.observe("orders")
        ready = {
            name: one.ready
            for name, one in observed.queues.items()
            if isinstance(one, QueueStatus) and one.ready and name.startswith("lbg.orders.q.")
        }
        assert ready == {"lbg.orders.q.5": 1}


class LosingItsLock(LiveAdmin):
    """Its connection is lost while it drains, and `meanwhile` is done by another one."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def renew_lock(self, group: str) -> bool:
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            await (await self.amqp.link.connection()).close()
            await meanwhile()
        return await super().renew_lock(group)


async def test_a_change_that_lost_its_lock_ends_where_another_command_wrote_the_record(place: Place) -> None:
    """It would write the record as it had read it, and publishers could go on in the pause of their ingress."""
    spec, admin = group_of("Exclusive"), LosingItsLock(place.settings, ManagementApi(place.management))
    async with place.administered() as other:
        await create_group(admin, spec)
        assert await published(place, spec)
        admin.meanwhile = lambda: pause_ingress(other, "orders", within_s=0.0)
        with pytest.raises(Busy):
            await repartition_group(admin, "orders", 6, timeout_s=0.3)
        assert (await other.observe("orders")).is_ingress_paused("orders")
        await admin.close()


@pytest.mark.long
async def test_an_online_run_that_waited_for_the_lock_of_a_killed_offline_one_changes_nothing(
    place: Place,
) -> None:
    """It would end the mark of the other one, and publishers would be locked out without it."""
    spec = group_of("Exclusive")
    async with place.administered() as admin:
        await create_group(admin, spec)
        assert await killed_after(place, 2, 3, half=False)
        with pytest.raises(UnderWay):
            await KeyMoveRun(admin, "orders", 6).round()
        await repartition_group(admin, "orders", 2, timeout_s=GUARD_S)
        await require_whole(place, admin, recounted(spec, 2))
