"""The assignment of a group's queues and its threshold: the attributes that a group may change."""

from __future__ import annotations

import pytest

from lbg_core.admin.actions import Announce
from lbg_core.admin.errors import GroupDiffers, NotOwned, UnderWay
from lbg_core.admin.groups import assign_queues, create_group
from lbg_core.admin.problems import text_of
from lbg_core.admin.record import Claim, kubernetes_owner
from lbg_core.group import BALANCED, BY_LOAD, PARTITIONED, STATIC, GroupSpec, SpecError, marked
from lbg_core.group.members_protocol import Assign
from testing.admin.fake_admin import FakeAdmin

ORDERS = GroupSpec("orders", hash_count=8, queue_count=4)
STATIC_ORDERS = ORDERS.altered(assignment=STATIC)


def announced(admin: FakeAdmin) -> int:
    """Number of times that members were told."""
    sent = [one.message for one in admin.performed if isinstance(one, Announce)]
    return sum(isinstance(one, Assign) for one in sent)


async def test_the_record_states_it_and_members_are_told() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    assert await assign_queues(admin, "orders", STATIC)
    assert admin.records["orders"] == STATIC_ORDERS.to_record()
    assert announced(admin) == 1
    assert not (await create_group(admin, STATIC_ORDERS)).changes


async def test_a_threshold_is_changed_with_it_and_stays_else() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    assert await assign_queues(admin, "orders", BY_LOAD, rebalance_threshold_percent=30)
    assert not await assign_queues(admin, "orders", BY_LOAD)
    wanted = ORDERS.altered(assignment=BY_LOAD, rebalance_threshold_percent=30)
    assert admin.records["orders"] == wanted.to_record()
    sent = [one.message for one in admin.performed if isinstance(one, Announce)]
    assert [one.rebalance_threshold_percent for one in sent if isinstance(one, Assign)] == [30, 30]
    with pytest.raises(SpecError, match="must be a whole number from 1 to 90"):
        await assign_queues(admin, "orders", BY_LOAD, rebalance_threshold_percent=0)
    with pytest.raises(GroupDiffers) as refused:
        await create_group(admin, ORDERS.altered(assignment=BY_LOAD, rebalance_threshold_percent=20))
    text = text_of(refused.value.problem)
    assert "`lbg group assign orders ByLoad --rebalance-threshold-percent 20`" in text


async def test_who_repeats_it_tells_members_that_a_killed_command_told_nothing() -> None:
    admin = FakeAdmin()
    await create_group(admin, STATIC_ORDERS)
    assert not await assign_queues(admin, "orders", STATIC)
    assert announced(admin) == 1


async def test_a_limit_of_clients_stays() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS.altered(max_clients=3))
    await assign_queues(admin, "orders", STATIC)
    spec = GroupSpec.from_record(admin.records["orders"], name="orders")
    assert (spec.assignment, spec.max_clients, spec.limits_clients) == (STATIC, 3, True)


async def test_a_create_refuses_another_one_and_names_the_command() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    with pytest.raises(GroupDiffers) as refused:
        await create_group(admin, STATIC_ORDERS)
    assert "assignment: Balanced -> Static" in (text := text_of(refused.value.problem))
    assert "`lbg group assign orders Static`" in text
    assert announced(admin) == 0


async def test_a_create_that_alters_changes_it_and_nothing_else() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS.altered(max_clients=3))
    await create_group(admin, ORDERS.altered(max_clients=3, assignment=STATIC), alters=True)
    assert admin.records["orders"] == ORDERS.altered(max_clients=3, assignment=STATIC).to_record()
    with pytest.raises(GroupDiffers, match="queue_count: 4 -> 2"):
        await create_group(admin, GroupSpec("orders", hash_count=8, queue_count=2), alters=True)


async def test_who_may_not_change_a_group_may_not_change_it() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS, claim=Claim(kubernetes_owner("cluster", "object")))
    with pytest.raises(NotOwned):
        await assign_queues(admin, "orders", STATIC)
    assert admin.records["orders"] == ORDERS.to_record()


async def test_it_waits_for_a_change_of_the_number_of_queues() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    admin.records["orders"] = marked(ORDERS, 6)
    with pytest.raises(UnderWay):
        await assign_queues(admin, "orders", STATIC)


async def test_only_a_group_of_exclusive_queues_has_another_than_balanced() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS.altered(mode=PARTITIONED))
    assert not await assign_queues(admin, "orders", BALANCED)
    with pytest.raises(SpecError, match="goes with mode Exclusive only"):
        await assign_queues(admin, "orders", STATIC)
