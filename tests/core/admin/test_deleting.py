"""Deleting a group: refuses while it is in use, and can always finish."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from lbg_core.admin import groups
from lbg_core.admin.actions import DeleteExchange, DeleteQueue
from lbg_core.admin.errors import GroupDiffers, GroupNotFound, NotOwned, StillInUse, UnderWay, Unreachable
from lbg_core.admin.groups import create_group, delete_group, delete_own
from lbg_core.admin.problems import lines_of
from lbg_core.admin.record import CLAIM_BY_HAND
from lbg_core.admin.snapshot import UNKNOWN, ExchangeState, QueueStatus, Snapshot, UserState
from lbg_core.group import Engine, GroupSpec
from lbg_core.group.spec import marked
from testing.admin.fake_admin import FakeAdmin

ORDERS = GroupSpec(
    "orders", "orders", hash_count=8, queue_count=4, queue_size_mb=10, client_username="orders-app"
)


async def made() -> FakeAdmin:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    return admin


async def test_nothing_remains_of_a_deleted_group() -> None:
    admin = await made()
    await delete_group(admin, "orders")
    assert admin.holds_nothing()
    assert admin.records == {}


async def test_a_group_that_is_not_there_is_not_found() -> None:
    with pytest.raises(GroupNotFound, match="no group 'orders'"):
        await delete_group(FakeAdmin(), "orders")


async def test_messages_and_consumers_stop_a_delete_and_are_told_queue_by_queue() -> None:
    admin = await made()
    _fill(admin, "lbg.orders.q.1", ready=3)
    _fill(admin, "lbg.orders.q.3", consumers=2)
    _fill(admin, "lbg.orders.dead", ready=1)
    with pytest.raises(StillInUse) as refused:
        await delete_group(admin, "orders")
    assert tuple(lines_of(refused.value.problem.causes)) == (
        "lbg.orders.q.1 has 3 messages, 0 consumers",
        "lbg.orders.q.3 has 0 messages, 2 consumers",
        "lbg.orders.dead has 1 message, 0 consumers",
    )
    assert "lbg.orders" in admin.exchanges


async def test_unacknowledged_messages_alone_are_counted_again_on_rabbitmq(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class CountsLate(FakeAdmin):
        counts: Iterator[int] = iter(())

        async def observe(self, group: str, *, desired: GroupSpec | None = None) -> Snapshot:
            for unacked in islice(self.counts, 1):
                _fill(self, "lbg.orders.q.1", unacked=unacked)
            return await super().observe(group, desired=desired)

    monkeypatch.setattr(groups, "COUNT_AGAIN_S", 0.0)
    admin = CountsLate(engine=Engine.parse("RabbitMQ", "3.10.8"))
    await create_group(admin, ORDERS)
    admin.counts = iter([2, 2, 0])
    await delete_group(admin, "orders")
    assert admin.holds_nothing()
    assert list(admin.counts) == []


async def test_unacknowledged_messages_stop_a_delete_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "COUNT_FOR_S", 0.0)
    for engine in ("RabbitMQ", "LBG"):
        admin = FakeAdmin(engine=Engine.parse(engine, "3.10.8"))
        await create_group(admin, ORDERS)
        _fill(admin, "lbg.orders.q.1", unacked=2)
        with pytest.raises(StillInUse, match=r"lbg\.orders\.q\.1 has 2 messages, 0 consumers"):
            await delete_group(admin, "orders")


async def test_force_deletes_what_is_in_use() -> None:
    admin = await made()
    _fill(admin, "lbg.orders.q.1", ready=3, consumers=1)
    await delete_group(admin, "orders", force=True)
    assert admin.holds_nothing()


async def test_a_queue_that_could_not_be_counted_does_not_count_as_empty() -> None:
    admin = await made()
    admin.queues["lbg.orders.q.0"] = replace(admin.queues["lbg.orders.q.0"], ready=UNKNOWN)
    with pytest.raises(StillInUse, match=r"lbg\.orders\.q\.0 could not be counted"):
        await delete_group(admin, "orders")


async def test_a_queue_that_is_down_stops_a_delete_although_0_is_counted_of_it() -> None:
    admin = await made()
    down = replace(admin.queues["lbg.orders.q.2"], is_down=True)
    admin.queues["lbg.orders.q.2"] = down.counted(QueueStatus(ready=0, consumers=0))
    with pytest.raises(
        StillInUse, match=r"lbg\.orders\.q\.2 does not answer, because most of its nodes are down"
    ):
        await delete_group(admin, "orders")
    assert "lbg.orders" in admin.exchanges


def test_of_a_queue_that_is_down_or_that_only_amqp_does_not_find_nothing_is_known() -> None:
    listed = QueueStatus(ready=5, unacked=1, consumers=1, arguments={"x-max-length": 1})
    nothing = QueueStatus(arguments={"x-max-length": 1}, is_down=True)
    assert listed.counted(QueueStatus(ready=7, consumers=2)) == replace(listed, ready=7, consumers=2)
    assert replace(listed, is_down=True).counted(QueueStatus(ready=0, consumers=0)) == nothing
    assert listed.counted(None) == nothing


async def test_queues_are_deleted_only_while_idle_unless_forced() -> None:
    for force in (False, True):
        admin = await made()
        done = await delete_group(admin, "orders", force=force)
        guarded = [one.only_idle for one in done if isinstance(one, DeleteQueue) and ".q." in one.name]
        assert guarded == [not force] * 4


async def test_inflow_stops_first_and_the_record_goes_last() -> None:
    admin = await made()
    done = await delete_group(admin, "orders")
    assert done[0] == DeleteExchange("lbg.orders")
    assert done[-1] == DeleteQueue("lbg.orders.config")
    queues = [one.name for one in done if isinstance(one, DeleteQueue) and ".q." in one.name]
    assert queues == [f"lbg.orders.q.{number}" for number in (3, 2, 1, 0)]


async def test_a_delete_that_was_interrupted_anywhere_finishes_at_the_next_try() -> None:
    steps = len(await delete_group(await made(), "orders"))
    for failing in range(steps):
        admin = await made()
        made_of = len(admin.performed)
        admin.fail_on = lambda action, admin=admin, at=made_of + failing: (
            Unreachable("gone") if len(admin.performed) == at else None
        )
        with pytest.raises(Unreachable):
            await delete_group(admin, "orders")
        admin.fail_on = lambda action: None
        await delete_group(admin, "orders")
        assert admin.holds_nothing(), f"interrupted at {failing}"


async def test_any_remains_of_a_group_can_be_deleted() -> None:
    chance = random.Random(1)
    for _ in range(200):
        admin = await made()
        for name in list(admin.queues):
            if chance.random() < 0.5:
                await admin.perform(DeleteQueue(name))
        for name in list(admin.exchanges):
            if chance.random() < 0.5:
                await admin.perform(DeleteExchange(name))
        if not (admin.queues or admin.exchanges):
            continue
        await delete_group(admin, "orders")
        assert admin.holds_nothing()


async def test_a_user_that_was_not_made_for_the_group_stays() -> None:
    admin = FakeAdmin()
    admin.users["orders-app"] = UserState("orders-app")
    await create_group(admin, ORDERS, with_user=False)
    await delete_group(admin, "orders")
    assert set(admin.users) == {"orders-app"}


async def test_the_queues_of_another_group_stay() -> None:
    admin = await made()
    admin.queues["lbg.orders-eu.q.0"] = QueueStatus(0, 0, 0)
    admin.exchanges["lbg.orders-eu"] = ExchangeState()
    await delete_group(admin, "orders")
    assert set(admin.queues) == {"lbg.orders-eu.q.0"}
    assert set(admin.exchanges) == {"lbg.orders-eu"}


@pytest.mark.parametrize("is_made", [False, True])
async def test_an_owner_deletes_its_group_with_its_user(is_made: bool) -> None:
    admin = await made()
    await delete_own(admin, ORDERS, claim=CLAIM_BY_HAND, is_made=is_made)
    assert admin.holds_nothing()


async def test_what_an_interrupted_create_left_is_its_own() -> None:
    steps = len((await made()).performed)
    for failing in range(1, steps):
        admin = FakeAdmin()
        admin.fail_on = lambda action, admin=admin, at=failing: (
            Killed() if len(admin.performed) >= at else None
        )
        with pytest.raises(Killed):
            await create_group(admin, ORDERS)
        admin.fail_on = lambda action: None
        admin.locked.clear()
        await delete_own(admin, ORDERS, claim=CLAIM_BY_HAND, is_made=False)
        assert admin.holds_nothing(), f"killed at {failing}"


@pytest.mark.parametrize("is_made", [False, True])
async def test_a_group_with_other_attributes_is_another_owners(is_made: bool) -> None:
    admin = await made()
    there = dict(admin.queues)
    with pytest.raises(GroupDiffers, match="queue_count"):
        await delete_own(
            admin, replace(ORDERS, queue_count=8), claim=CLAIM_BY_HAND, is_made=is_made, force=True
        )
    assert admin.queues == there


async def test_a_group_that_a_create_would_not_have_adopted_is_another_owners() -> None:
    admin = await made()
    changed = replace(admin.queues["lbg.orders.q.0"], arguments={"x-max-length": 1})
    admin.queues["lbg.orders.q.0"] = changed
    with pytest.raises(GroupDiffers, match="x-max-length"):
        await delete_own(admin, ORDERS, claim=CLAIM_BY_HAND, is_made=False, force=True)
    await delete_own(admin, ORDERS, claim=CLAIM_BY_HAND, is_made=True)
    assert admin.holds_nothing()


async def test_a_group_that_another_owner_is_changing_is_not_deleted() -> None:
    admin = await made()
    admin.records["orders"] = marked(ORDERS, 8)
    with pytest.raises(UnderWay):
        await delete_own(admin, ORDERS, claim=CLAIM_BY_HAND, is_made=False)


async def test_parts_without_a_record_are_its_own_where_nobody_uses_them() -> None:
    for ready, is_own in ((0, True), (1, False)):
        admin = await made()
        for name in ("lbg.orders.config", "lbg.orders.q.3"):
            await admin.perform(DeleteQueue(name))
        _fill(admin, "lbg.orders.q.1", ready=ready)
        if is_own:
            await delete_own(admin, ORDERS, claim=CLAIM_BY_HAND, is_made=False)
            assert admin.holds_nothing()
        else:
            with pytest.raises(NotOwned, match="group 'orders' on this broker has another owner"):
                await delete_own(admin, ORDERS, claim=CLAIM_BY_HAND, is_made=False, force=True)
            assert "lbg.orders.q.1" in admin.queues


class Killed(BaseException):
    """The process that creates a group ends."""


def _fill(admin: FakeAdmin, queue: str, **counts: int) -> None:
    nothing = {"ready": 0, "unacked": 0, "consumers": 0}
    admin.queues[queue] = replace(admin.queues[queue], **{**nothing, **counts})
