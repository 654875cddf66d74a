"""Another number of queues on real brokers, without members and publishers of ours."""

from __future__ import annotations

import pytest

from lbg_core.admin.actions import Action
from lbg_core.admin.groups import assignment_announced, create_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.plan import recorded
from lbg_core.admin.repartition import repartition_group
from lbg_core.group import GroupSpec, recounted, topology_of
from testing.waiting import GUARD_S


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no members here to be listened to, and nobody who holds messages."""
    monkeypatch.setattr("lbg_core.admin.repartition.LISTEN_S", 0.01)
    monkeypatch.setattr("lbg_core.admin.key_move.LISTEN_S", 0.01)
    monkeypatch.setattr("lbg_core.admin.repartition.TOLD_S", 0.0)
    monkeypatch.setattr("lbg_core.admin.repartition.SAMPLED_S", 0.0)


@pytest.mark.long
@pytest.mark.parametrize("count", [7, 2])
async def test_queues_bindings_and_record_are_those_of_a_group_made_with_that_many(
    admin: LiveAdmin, orders: GroupSpec, count: int
) -> None:
    await create_group(admin, orders)
    done = await repartition_group(admin, "orders", count, timeout_s=GUARD_S)
    assert (done.was, done.now) == (4, count)
    created = await create_group(admin, recounted(orders, count))
    assert created.changes == ()
    observed = await admin.observe("orders")
    topology = topology_of(recounted(orders, count), observed.engine)
    assert observed.bindings == set(topology.bindings)
    assert {one.name for one in topology.queues} == set(observed.queues)


@pytest.mark.long
@pytest.mark.parametrize(("steps", "most"), [((6,), 4), ((4, 6), 4), ((6, 4, 6), 4)])
async def test_a_limit_of_clients_stays_through_any_numbers_of_queues(
    admin: LiveAdmin, orders: GroupSpec, steps: tuple[int, ...], most: int
) -> None:
    limited = orders.altered(queue_count=4 if steps[0] != 4 else 5, max_clients=most)
    await create_group(admin, limited)
    for count in steps:
        await repartition_group(admin, "orders", count, timeout_s=GUARD_S)
    spec = recorded("orders", await admin.observe("orders"))
    assert spec is not None
    assert (spec.queue_count, spec.max_clients) == (steps[-1], most)


@pytest.mark.long
async def test_the_limit_of_clients_is_changed_with_the_number_of_queues(
    admin: LiveAdmin, orders: GroupSpec
) -> None:
    await create_group(admin, orders.altered(max_clients=4))
    await repartition_group(admin, "orders", 2, max_clients=2, timeout_s=GUARD_S)
    await repartition_group(admin, "orders", 5, timeout_s=GUARD_S)
    spec = recorded("orders", await admin.observe("orders"))
    assert spec is not None
    assert (spec.queue_count, spec.max_clients) == (5, 2)


@pytest.mark.long
async def test_a_limit_that_a_later_create_gives_is_kept_too(admin: LiveAdmin, orders: GroupSpec) -> None:
    await create_group(admin, orders)
    limited = orders.altered(max_clients=orders.queue_count)
    again = await create_group(admin, limited)
    assert [str(change) for change in again.changes] == ["write the record of group orders"]
    assert (await create_group(admin, limited)).changes == ()
    assert (await create_group(admin, orders)).changes == ()
    assert recorded("orders", await admin.observe("orders")).limits_clients


async def test_who_repeats_a_change_tells_members_what_a_killed_command_did_not(
    admin: LiveAdmin, orders: GroupSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = orders.altered(max_clients=2)
    await create_group(admin, limited)
    told: list[Action] = []

    async def perform(action: Action) -> None:
        told.append(action)

    monkeypatch.setattr(admin, "perform", perform)
    assert not (await repartition_group(admin, "orders", 4, max_clients=2, timeout_s=GUARD_S)).is_changed
    assert told == [assignment_announced(limited)]
