"""Creating a group: everything or nothing, idempotent, and never over something else."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lbg_broker.group import Engine, GroupSpec, topology_of
from lbg_broker.group.topology import Binding
from lbg_broker.provisioning.actions import (
    Action,
    Bind,
    DeclareQueue,
    DeleteQueue,
    PutPermissions,
    PutUser,
    WriteRecord,
)
from lbg_broker.provisioning.errors import (
    ApplyFailed,
    Busy,
    GroupDiffers,
    Refused,
    Taken,
    Unreachable,
    Unsupported,
)
from lbg_broker.provisioning.observed import Policy, QueueSeen, UserSeen
from lbg_broker.provisioning.provisioner import create_group
from support.fake_admin import FakeAdmin

ORDERS = GroupSpec(
    "orders", "orders", hash_count=8, queue_count=4, queue_size_mb=10, client_username="orders-app"
)
INVOICES = GroupSpec(
    "invoices", "inv", hash_count=4, queue_count=2, queue_size_mb=10, client_username="invoices-app"
)


async def test_a_new_group_has_everything_its_topology_says() -> None:
    admin = FakeAdmin()
    created = await create_group(admin, ORDERS)
    topology = topology_of(ORDERS, admin.engine)
    assert set(admin.exchanges) == {exchange.name for exchange in topology.exchanges}
    assert set(admin.queues) == {queue.name for queue in topology.queues}
    assert admin.bindings == set(topology.bindings)
    assert admin.permissions == {"orders-app": topology.permissions}
    assert admin.users["orders-app"].made_for == "orders"
    assert admin.records == {"orders": ORDERS.to_record()}
    assert not created.was_there
    assert created.password == admin.passwords["orders-app"]


async def test_the_record_is_written_when_all_else_is_there() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    assert isinstance(admin.performed[-1], WriteRecord)


async def test_a_given_password_is_used_and_not_told_again() -> None:
    admin = FakeAdmin()
    created = await create_group(admin, ORDERS, password="s3cret")
    assert admin.passwords["orders-app"] == "s3cret"
    assert created.password is None
    assert "s3cret" not in repr(created)
    assert "s3cret" not in repr(admin.performed) + "".join(map(str, admin.performed))


async def test_creating_an_identical_group_again_changes_nothing() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    again = await create_group(admin, ORDERS)
    assert again.was_there
    assert again.changes == ()
    assert again.password is None


async def test_a_password_given_again_is_set_again() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS, password="old")
    again = await create_group(admin, ORDERS, password="new")
    assert [str(change) for change in again.changes] == ["set the password of user orders-app"]
    assert admin.passwords["orders-app"] == "new"


async def test_a_missing_record_is_repaired() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    admin.records.clear()
    again = await create_group(admin, ORDERS)
    assert [str(change) for change in again.changes] == ["write the record of group orders"]
    assert admin.records == {"orders": ORDERS.to_record()}


async def test_a_record_that_is_none_is_replaced() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    observed = await admin.observe("orders", wanted=ORDERS)

    async def observe(group: str, *, wanted: GroupSpec | None = None) -> object:
        return replace(observed, record="not json")

    admin.observe = observe
    again = await create_group(admin, ORDERS)
    assert [str(change) for change in again.changes] == ["write the record of group orders"]


async def test_what_somebody_deleted_from_a_group_is_put_back() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    await admin.perform(DeleteQueue("lbg.orders.q.2"))
    await create_group(admin, ORDERS)
    topology = topology_of(ORDERS, admin.engine)
    assert set(admin.queues) == {queue.name for queue in topology.queues}
    assert admin.bindings == set(topology.bindings)


async def test_permissions_that_somebody_widened_are_put_back() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    admin.permissions["orders-app"] = replace(admin.permissions["orders-app"], write=".*")
    await create_group(admin, ORDERS)
    assert admin.permissions["orders-app"] == topology_of(ORDERS, admin.engine).permissions


async def test_a_group_with_other_attributes_is_refused_with_the_difference() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    wanted = GroupSpec(
        "orders", "orders", hash_count=16, queue_count=4, queue_size_mb=20, client_username="orders-app"
    )
    before = dict(admin.queues)
    with pytest.raises(GroupDiffers) as refused:
        await create_group(admin, wanted)
    assert refused.value.diff == ("hash_count: 8 -> 16", "queue_size_mb: 10 -> 20")
    assert admin.queues == before


async def test_a_queue_with_other_arguments_is_refused_with_the_difference() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    admin.queues["lbg.orders.q.1"] = QueueSeen(0, 0, 0, None, {"x-max-length-bytes": 10_000_000})
    with pytest.raises(GroupDiffers) as refused:
        await create_group(admin, ORDERS)
    assert "queue lbg.orders.q.1 x-overflow: none -> reject-publish" in refused.value.diff


async def test_a_binding_that_is_not_the_groups_is_refused() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    admin.bindings.add(Binding("lbg.orders", "lbg.orders.q.0", "orders.1.#"))
    with pytest.raises(
        GroupDiffers, match=r"binding of lbg\.orders\.q\.0 to lbg\.orders: 'orders\.1\.#' -> none"
    ):
        await create_group(admin, ORDERS)


async def test_a_queue_that_listens_in_is_no_difference() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    admin.bindings.add(Binding("lbg.orders", "audit", "#"))
    assert (await create_group(admin, ORDERS)).changes == ()


@pytest.mark.parametrize("left", range(1, 21))
async def test_what_an_interrupted_create_left_is_finished_by_who_owns_the_name(left: int) -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    actions = tuple(admin.performed)
    interrupted = FakeAdmin()
    for action in actions[:left]:
        await interrupted.perform(action)
    if any(isinstance(action, Bind) for action in actions[left:]):
        with pytest.raises(Taken):
            await create_group(interrupted, ORDERS)
    created = await create_group(interrupted, ORDERS, finish=True)
    assert created.was_there
    for what in ("exchanges", "queues", "bindings", "permissions", "records"):
        assert getattr(interrupted, what) == getattr(admin, what), what


async def test_parts_that_hold_something_or_are_in_use_or_are_otherwise_are_not_finished() -> None:
    queue = "lbg.orders.q.1"
    arguments = next(
        one.arguments for one in topology_of(ORDERS, FakeAdmin().engine).queues if one.name == queue
    )
    for seen in (
        QueueSeen(1, 0, 0, None, arguments),
        QueueSeen(0, 1, 0, None, arguments),
        QueueSeen(0, 0, 1, None, arguments),
        QueueSeen(0, 0, 0, None, {}),
        QueueSeen(0, 0, 0),
    ):
        admin = FakeAdmin()
        admin.queues[queue] = seen
        with pytest.raises(Taken, match=r"queue lbg\.orders\.q\.1 exists"):
            await create_group(admin, ORDERS, finish=True)
    admin = FakeAdmin()
    admin.queues[queue] = QueueSeen(0, 0, 0, None, arguments)
    admin.bindings.add(Binding("lbg.orders", queue, "orders.0.#"))
    with pytest.raises(Taken):
        await create_group(admin, ORDERS, finish=True)
    admin = FakeAdmin()
    admin.queues["lbg.orders.q.4"] = QueueSeen(0, 0, 0, None, arguments)
    with pytest.raises(Taken):
        await create_group(admin, ORDERS, finish=True)


async def test_every_name_that_is_taken_is_listed_with_what_takes_it() -> None:
    admin = FakeAdmin()
    await create_group(admin, INVOICES)
    admin.users["orders-app"] = UserSeen("orders-app")
    admin.queues["lbg.orders.q.3"] = QueueSeen(12, 0, 1, "c", {})
    wanted = GroupSpec(
        "orders", "inv", hash_count=8, queue_count=4, queue_size_mb=1, client_username="orders-app"
    )
    with pytest.raises(Taken) as refused:
        await create_group(admin, wanted)
    assert refused.value.what == (
        "queue lbg.orders.q.3 exists (12 messages, 1 consumer)",
        "prefix 'inv' is that of group 'invoices'",
        "user 'orders-app' exists",
    )
    assert "lbg.orders" not in admin.exchanges


async def test_a_user_of_another_group_is_taken_by_that_group() -> None:
    admin = FakeAdmin()
    await create_group(admin, INVOICES)
    wanted = GroupSpec(
        "orders", "orders", hash_count=8, queue_count=4, queue_size_mb=1, client_username="invoices-app"
    )
    with pytest.raises(Taken, match="user 'invoices-app' is that of group 'invoices'"):
        await create_group(admin, wanted)


async def test_without_a_user_nothing_is_said_or_done_about_users() -> None:
    admin = FakeAdmin()
    admin.users["orders-app"] = UserSeen("orders-app")
    created = await create_group(admin, ORDERS, with_user=False)
    assert not any(isinstance(change, (PutUser, PutPermissions)) for change in created.changes)
    assert created.password is None


async def test_a_failure_takes_back_everything_that_was_made() -> None:
    steps = len((await create_group(FakeAdmin(), ORDERS)).changes)
    for failing in range(steps):
        admin = FakeAdmin()
        admin.fail_on = _fail_at(admin, failing, Unreachable("gone"))
        with pytest.raises(ApplyFailed, match="everything made before it was rolled back"):
            await create_group(admin, ORDERS)
        assert admin.holds_nothing(), f"failing step {failing}"


async def test_a_step_the_broker_refused_is_not_taken_back() -> None:
    admin = FakeAdmin()
    admin.fail_on = _fail_at(admin, 6, Refused("406 another queue of this name", status=406))
    with pytest.raises(ApplyFailed) as failed:
        await create_group(admin, ORDERS)
    refused = failed.value.action.removeprefix("declare queue ")
    assert not any(isinstance(one, DeleteQueue) and one.name == refused for one in admin.performed)


async def test_what_cannot_be_taken_back_is_named() -> None:
    admin = FakeAdmin()

    def fail(action: Action) -> Exception | None:
        if isinstance(action, WriteRecord):
            return Unreachable("connection lost")
        if action == DeleteQueue("lbg.orders.q.1"):
            return Unreachable("still lost")
        return None

    admin.fail_on = fail
    with pytest.raises(ApplyFailed) as failed:
        await create_group(admin, ORDERS)
    assert failed.value.left_behind == ("delete queue lbg.orders.q.1 failed: still lost",)
    assert set(admin.queues) == {"lbg.orders.q.1"}


async def test_a_cancelled_create_is_taken_back() -> None:
    admin = FakeAdmin()
    perform = admin.perform
    reached_the_last_step = asyncio.Event()

    async def perform_slowly(action: Action) -> None:
        if isinstance(action, WriteRecord):
            reached_the_last_step.set()
            await asyncio.get_running_loop().create_future()
        await perform(action)

    admin.perform = perform_slowly
    task = asyncio.create_task(create_group(admin, ORDERS))
    await reached_the_last_step.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert admin.holds_nothing()


async def test_a_repair_that_fails_leaves_the_group_as_it_was() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    await admin.perform(DeleteQueue("lbg.orders.q.2"))
    admin.records.clear()
    there = (dict(admin.exchanges), dict(admin.queues), set(admin.bindings), dict(admin.permissions))
    observed = await admin.observe("orders", wanted=ORDERS)

    async def observe(group: str, *, wanted: GroupSpec | None = None) -> object:
        return replace(observed, record=ORDERS.to_record())

    admin.observe = observe
    admin.fail_on = lambda action: Unreachable("gone") if isinstance(action, PutUser) else None
    with pytest.raises(ApplyFailed):
        await create_group(admin, ORDERS, password="new")
    assert (admin.exchanges, admin.queues, admin.bindings, admin.permissions) == there


async def test_two_provisioners_do_not_work_on_one_group_at_once() -> None:
    admin = FakeAdmin()
    admin.locked.add("orders")
    with pytest.raises(Busy, match="try again"):
        await create_group(admin, ORDERS)


@pytest.mark.parametrize("mode", ["Partitioned", "MessageGroups", "Sessions"])
async def test_a_mode_the_engine_does_not_carry_is_refused_with_the_reason(mode: str) -> None:
    admin = FakeAdmin()
    wanted = GroupSpec(
        "orders", "orders", hash_count=8, queue_count=4, queue_size_mb=1, client_username="app", mode=mode
    )
    with pytest.raises(Unsupported, match=f"mode '{mode}'.*carries mode 'Exclusive' only"):
        await create_group(admin, wanted)
    assert admin.holds_nothing()


@pytest.mark.parametrize("version", ["3.9.29", "3.8.0"])
async def test_a_rabbitmq_that_is_too_old_is_refused_and_nothing_is_made(version: str) -> None:
    admin = FakeAdmin(engine=Engine.parse("RabbitMQ", version))
    with pytest.raises(Unsupported, match=f"on RabbitMQ {version}: RabbitMQ 3.10 or later is needed"):
        await create_group(admin, ORDERS)
    assert admin.holds_nothing()


async def test_the_oldest_rabbitmq_that_is_tested_carries_a_group() -> None:
    created = await create_group(FakeAdmin(engine=Engine.parse("RabbitMQ", "3.10.0")), ORDERS)
    assert created.changes


RABBIT = Engine.parse("RabbitMQ", "4.0.5")


@pytest.mark.parametrize(
    ("policy", "is_refused"),
    [
        (Policy("limit", "^lbg\\.", "queues", 0, {"delivery-limit": 20}), True),
        (Policy("limit", "^lbg\\.", "quorum_queues", 0, {"delivery-limit": 20}), True),
        (Policy("ttl", ".*", "all", 0, {"message-ttl": 1000}), True),
        (Policy("by-op", ".*", "queues", 0, {"expires": 1000}, True), True),
        (Policy("odd", "(?<erlang", "queues", 0, {"delivery-limit": 5}), True),
        (Policy("other", "^billing", "queues", 0, {"delivery-limit": 20}), False),
        (Policy("exchanges", ".*", "exchanges", 0, {"delivery-limit": 20}), False),
        (Policy("harmless", ".*", "all", 0, {"ha-mode": "all"}), False),
    ],
)
async def test_a_policy_in_force_that_loses_messages_is_refused(policy: Policy, is_refused: bool) -> None:
    admin = FakeAdmin(engine=RABBIT)
    admin.policies = (policy,)
    if not is_refused:
        await create_group(admin, ORDERS)
        return
    with pytest.raises(Unsupported, match=f"would lose messages.*{policy.name}"):
        await create_group(admin, ORDERS)
    assert admin.holds_nothing()


async def test_only_the_policy_of_the_highest_priority_is_in_force() -> None:
    admin = FakeAdmin(engine=RABBIT)
    low = Policy("low", ".*", "queues", 0, {"delivery-limit": 20})
    admin.policies = (low, Policy("high", "^lbg", "queues", 5, {"queue-leader-locator": "balanced"}))
    await create_group(admin, ORDERS)


async def test_without_a_management_api_an_identical_group_is_declared_again_to_be_sure() -> None:
    admin = FakeAdmin(amqp_only=True)
    await create_group(admin, ORDERS, with_user=False)
    again = await create_group(admin, ORDERS, with_user=False)
    assert {type(change).__name__ for change in again.changes} == {"DeclareExchange", "DeclareQueue", "Bind"}
    assert not any(getattr(change, "is_new", False) for change in again.changes)


async def test_without_a_management_api_names_in_use_without_a_record_are_taken() -> None:
    admin = FakeAdmin(amqp_only=True)
    await create_group(admin, ORDERS, with_user=False)
    admin.records.clear()
    with pytest.raises(Taken, match=r"exchange lbg\.orders exists"):
        await create_group(admin, ORDERS, with_user=False)


def _fail_at(admin: FakeAdmin, step: int, error: Exception):
    failed: list[Action] = []

    def fail(action: Action) -> Exception | None:
        if len(admin.performed) == step and not failed:
            failed.append(action)
            if isinstance(action, DeclareQueue):
                # The broker did it, and the answer was lost.
                admin.queues[action.queue.name] = QueueSeen(0, 0, 0, None, action.queue.arguments)
                if isinstance(error, Refused):
                    del admin.queues[action.queue.name]
            return error
        return None

    return fail
