"""Another number of partitions while publishers go on: what is left when the command dies, and what is shown."""

from __future__ import annotations

import pytest

from lbg_core.admin.groups import create_group, show_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.progress import line_of
from lbg_core.admin.repartition import repartition_group
from lbg_core.client import BasicProperties, ConfirmingPublisher, connect
from lbg_core.group import GroupSpec, Names, hash_of, recounted, routing_key, topology_of
from testing.admin.cut_admin import CutAdmin, KilledError
from testing.admin.place import Place
from testing.admin.problem_lines import beside_backlog
from testing.waiting import GUARD_S

pytestmark = pytest.mark.parametrize("place", ["embedded"], indirect=True)

SPEC = GroupSpec(
    "orders",
    "orders",
    hash_count=24,
    queue_count=4,
    queue_size_mb=10,
    client_username="orders",
    mode="Partitioned",
)


async def publish_each_key(place: Place, count: int = 24) -> None:
    """Raises what the broker refuses a message with."""
    connection = await connect(place.settings)
    publisher = await ConfirmingPublisher.open(connection)
    for number in range(count):
        key = f"key-{number}"
        await publisher.publish(
            Names("orders").exchange,
            routing_key("orders", hash_of(key, 24), ""),
            b"",
            properties=BasicProperties(headers={"lbg-key": key}, delivery_mode=2),
        )
    await connection.close()


async def require_whole(admin: LiveAdmin, count: int) -> None:
    """All is as if the group had been made with this number."""
    spec = recounted(SPEC, count)
    assert (await create_group(admin, spec)).changes == ()
    observed = await admin.observe("orders")
    assert {one.name for one in topology_of(spec, observed.engine).queues} == set(observed.queues)
    assert beside_backlog(await show_group(admin, "orders", listen_s=0.01)) == ()


@pytest.mark.long
@pytest.mark.parametrize("then", [6, 4])
@pytest.mark.parametrize("half", [False, True], ids=["before", "without the answer"])
@pytest.mark.parametrize("changes", [0, 1, 2])
async def test_killed_at_any_change_a_second_run_finishes_or_takes_back(
    place: Place, changes: int, half: bool, then: int
) -> None:
    async with place.administered() as admin:
        await create_group(admin, SPEC)
        cut = CutAdmin(place, changes=changes, half=half)
        with pytest.raises(KilledError):
            await repartition_group(cut, "orders", 6, timeout_s=GUARD_S)
        await cut.close()
        await publish_each_key(place)
        await repartition_group(admin, "orders", then, timeout_s=0.0)
        await publish_each_key(place)
        await require_whole(admin, then)


@pytest.mark.long
async def test_a_change_goes_on_without_the_command_and_says_what_it_waits_for(place: Place) -> None:
    async with place.administered() as admin:
        await create_group(admin, SPEC)
        await publish_each_key(place)
        lines: list[str] = []
        done = await repartition_group(
            admin, "orders", 2, timeout_s=0.0, report=lambda one: lines.append(line_of(one))
        )
        assert (done.was, done.now, done.is_changed, done.is_settled) == (4, 2, True, False)
        await publish_each_key(place)
        shown = await show_group(admin, "orders", listen_s=0.01)
        moving = shown.to_json()["moving_keys"]
        surplus = sum(one.ready for one in shown.native.partitions[2:])
        assert surplus > 0
        hashes = moving.pop("hashes")
        assert moving == {"partitions": 2, "messages_held": surplus, "messages_surplus": surplus}
        text = (
            f"{hashes} hashes move when their earlier messages are processed, "
            f"{surplus} messages are in partitions that go"
        )
        assert lines[-2].startswith(f"no longer waiting: {text}")
        assert lines[-1] == "the broker goes on with it"
        again = await repartition_group(admin, "orders", 2, timeout_s=0.0)
        assert (again.is_changed, again.is_settled) == (False, False)


@pytest.mark.long
async def test_the_number_it_has_is_nothing_to_do(place: Place) -> None:
    async with place.administered() as admin:
        await create_group(admin, SPEC)
        done = await repartition_group(admin, "orders", 4, timeout_s=0.0)
        assert (done.is_changed, done.is_settled) == (False, True)


async def test_messages_of_partitions_that_go_are_deleted_when_asked_for(place: Place) -> None:
    async with place.administered() as admin:
        await create_group(admin, SPEC)
        await publish_each_key(place)
        await repartition_group(admin, "orders", 2, timeout_s=0.0, discard=True)
        shown = await show_group(admin, "orders", listen_s=0.01)
        assert shown.to_json()["moving_keys"] is None
        assert 0 < shown.ready < 24


async def test_an_offline_run_that_was_killed_is_finished_offline(place: Place) -> None:
    async with place.administered() as admin:
        await create_group(admin, SPEC)
        cut = CutAdmin(place, changes=3, half=False)
        with pytest.raises(KilledError):
            await repartition_group(cut, "orders", 6, timeout_s=GUARD_S, offline=True)
        await cut.close()
        lines: list[str] = []
        await repartition_group(
            admin, "orders", 6, timeout_s=GUARD_S, report=lambda one: lines.append(line_of(one))
        )
        assert lines[-1] == "ingress on"
        await publish_each_key(place)
        await require_whole(admin, 6)
