"""The attributes that a group may change: its assignment, the threshold of moves and the limit of its clients."""

from __future__ import annotations

import pytest

from lbg_core.admin.actions import Announce
from lbg_core.admin.errors import GroupDiffers, NotOwned, UnderWay, Unsupported
from lbg_core.admin.groups import assign_queues, create_group
from lbg_core.admin.key_move import KeyMoveRun
from lbg_core.admin.problems import text_of
from lbg_core.admin.record import Claim, kubernetes_owner
from lbg_core.group import (
    BALANCED,
    BY_LOAD,
    EMBEDDED,
    MESSAGE_GROUPS,
    PARTITIONED,
    RABBITMQ,
    SESSIONS,
    STATIC,
    Engine,
    GroupSpec,
    SpecError,
    marked,
)
from lbg_core.group.members_protocol import Assign
from testing.admin.fake_admin import FakeAdmin

ORDERS = GroupSpec("orders", hash_count=8, queue_count=4, assignment=BALANCED)
STATIC_ORDERS = ORDERS.altered(assignment=STATIC)


def announced(admin: FakeAdmin) -> list[tuple[str, int]]:
    """Assignments that members were told, each with the highest number of them."""
    sent = [one.message for one in admin.performed if isinstance(one, Announce)]
    return [(one.assignment, one.max_clients) for one in sent if isinstance(one, Assign)]


async def test_the_record_states_it_and_members_are_told() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    assert await assign_queues(admin, "orders", STATIC)
    assert admin.records["orders"] == STATIC_ORDERS.to_record()
    assert announced(admin) == [(STATIC, 4)]
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
    assert announced(admin) == [(STATIC, 4)]


async def test_a_limit_of_clients_stays() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS.altered(max_clients=3))
    await assign_queues(admin, "orders", STATIC)
    spec = GroupSpec.from_record(admin.records["orders"], name="orders")
    assert (spec.assignment, spec.max_clients, spec.limits_clients) == (STATIC, 3, True)
    assert announced(admin) == [(STATIC, 3)]


async def test_a_create_refuses_another_one_and_names_the_command() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    with pytest.raises(GroupDiffers) as refused:
        await create_group(admin, STATIC_ORDERS)
    assert "assignment: Balanced -> Static" in (text := text_of(refused.value.problem))
    assert "`lbg group assign orders Static`" in text
    assert announced(admin) == []


async def test_a_create_refuses_another_limit_of_clients_and_names_the_command() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    with pytest.raises(GroupDiffers) as refused:
        await create_group(admin, ORDERS.altered(max_clients=3))
    assert "`lbg group repartition orders --queues 4 --max-clients 3`" in text_of(refused.value.problem)


async def test_a_limit_that_cannot_be_changed_has_no_command() -> None:
    admin = FakeAdmin()
    sessions = GroupSpec("orders", hash_count=8, mode=SESSIONS)
    await create_group(admin, sessions)
    with pytest.raises(GroupDiffers) as refused:
        await create_group(admin, sessions.altered(max_clients=3))
    assert "repartition" not in text_of(refused.value.problem)


async def test_a_create_that_alters_changes_it_and_nothing_else() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS.altered(max_clients=3))
    await create_group(admin, ORDERS.altered(max_clients=3, assignment=STATIC), alters=True)
    assert admin.records["orders"] == ORDERS.altered(max_clients=3, assignment=STATIC).to_record()
    with pytest.raises(GroupDiffers, match="queue_count: 4 -> 2"):
        await create_group(admin, GroupSpec("orders", hash_count=8, queue_count=2), alters=True)


@pytest.mark.parametrize("limits", [(3, 2), (3, None), (None, 3), (4, None)])
async def test_a_create_that_alters_gives_the_limit_of_clients_and_takes_it(
    limits: tuple[int | None, int | None],
) -> None:
    admin = FakeAdmin()
    former, wanted = (ORDERS.altered(max_clients=one) for one in limits)
    await create_group(admin, former)
    await create_group(admin, wanted, alters=True)
    assert admin.records["orders"] == wanted.to_record()
    assert not (await create_group(admin, wanted, alters=True)).changes


async def test_members_are_told_another_limit_of_clients() -> None:
    admin = FakeAdmin()
    await create_group(admin, STATIC_ORDERS)
    assert await KeyMoveRun(admin, "orders", 4, max_clients=2).round()
    assert admin.records["orders"] == STATIC_ORDERS.altered(max_clients=2).to_record()
    assert announced(admin) == [(STATIC, 2)]


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


async def test_a_group_without_queues_of_its_members_is_balanced() -> None:
    admin = FakeAdmin()
    await create_group(admin, GroupSpec("orders", mode=MESSAGE_GROUPS))
    assert not await assign_queues(admin, "orders", BALANCED)
    with pytest.raises(SpecError, match="goes with mode Exclusive or Partitioned only"):
        await assign_queues(admin, "orders", STATIC)


async def test_partitions_of_the_embedded_broker_are_balanced() -> None:
    admin = FakeAdmin(engine=Engine(EMBEDDED, (1, 0, 0)))
    partitioned = ORDERS.altered(mode=PARTITIONED)
    why = "the embedded broker assigns partitions by itself, evenly; leave out assignment ByLoad, or use mode Exclusive"
    with pytest.raises(Unsupported) as refused:
        await create_group(admin, partitioned.altered(assignment=BY_LOAD))
    assert str(refused.value) == f"group 'orders' is not possible on LBG 1.0.0: {why}"
    await create_group(admin, partitioned)
    with pytest.raises(Unsupported) as refused:
        await assign_queues(admin, "orders", BY_LOAD)
    assert str(refused.value) == f"queues of group 'orders' cannot be assigned by ByLoad: {why}"
    assert admin.records["orders"] == partitioned.to_record()


async def test_partitions_on_rabbitmq_have_every_assignment() -> None:
    admin = FakeAdmin(engine=Engine(RABBITMQ, (4, 0, 5)))
    partitioned = ORDERS.altered(mode=PARTITIONED, assignment=BY_LOAD)
    await create_group(admin, partitioned)
    assert admin.records["orders"] == partitioned.to_record()
    assert await assign_queues(admin, "orders", STATIC)
    assert admin.records["orders"] == partitioned.altered(assignment=STATIC).to_record()
