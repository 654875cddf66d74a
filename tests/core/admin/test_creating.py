"""Creating a group: everything or nothing, and idempotent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from lbg_core.admin.actions import (
    Action,
    Bind,
    DeclareQueue,
    DeleteQueue,
    PutPermissions,
    PutUser,
    WriteRecord,
)
from lbg_core.admin.amqp_link import REQUEST_S
from lbg_core.admin.errors import (
    ApplyFailed,
    GroupUnfinished,
    RecordNewer,
    Refused,
    StillInUse,
    Taken,
    Unreachable,
)
from lbg_core.admin.groups import close_group, create_group, enable_parking, rotate_user, show_group
from lbg_core.admin.record import BY_HAND, Record, spec_in
from lbg_core.admin.snapshot import QueueStatus, UserState
from lbg_core.group import RECORD_VERSION, GroupSpec, topology_of
from testing.admin.fake_admin import FakeAdmin
from testing.admin.problem_lines import problem_lines
from testing.virtual_time import in_virtual_time

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


@pytest.mark.parametrize(
    "change",
    [
        lambda admin: create_group(admin, ORDERS),
        lambda admin: rotate_user(admin, "orders"),
        lambda admin: close_group(admin, "orders"),
        lambda admin: enable_parking(admin, "orders"),
    ],
    ids=["create", "rotate", "close", "park"],
)
async def test_a_record_of_a_newer_version_is_refused_and_nothing_is_changed(
    change: Callable[[FakeAdmin], Awaitable[object]],
) -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    newer = admin.records["orders"].replace(f'"V":{RECORD_VERSION}', f'"V":{RECORD_VERSION + 1}')
    admin.records["orders"] = newer
    performed = len(admin.performed)
    with pytest.raises(RecordNewer) as refused:
        await change(admin)
    assert str(refused.value) == (
        "the record of group 'orders' (queue lbg.orders.config) is of version 2, and this LBG reads version 1; nothing "
        "is changed: upgrade it"
    )
    assert len(admin.performed) == performed
    assert admin.records == {"orders": newer}
    assert problem_lines(await show_group(admin, "orders"))[0] == str(refused.value)


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


async def test_another_password_is_set_and_the_same_is_not() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS, password="old")
    assert (await create_group(admin, ORDERS, password="old")).changes == ()
    again = await create_group(admin, ORDERS, password="new")
    assert [str(change) for change in again.changes] == ["set the password of user orders-app"]
    assert admin.passwords["orders-app"] == "new"


@pytest.mark.parametrize("told", ["", "c2FsdA==", "no base64"])
async def test_a_password_whose_hash_tells_nothing_is_set(told: str) -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS, password="old")
    admin.users["orders-app"] = replace(admin.users["orders-app"], password_hash=told)
    again = await create_group(admin, ORDERS, password="old")
    assert [str(change) for change in again.changes] == ["set the password of user orders-app"]


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
    observed = await admin.observe("orders", desired=ORDERS)

    async def observe(group: str, *, desired: GroupSpec | None = None) -> object:
        return replace(observed, record=Record("not json", BY_HAND))

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


@pytest.mark.parametrize("amqp_only", [False, True])
@pytest.mark.parametrize("left", range(1, 22))
async def test_what_an_interrupted_create_left_is_finished_by_the_next(left: int, amqp_only: bool) -> None:
    admin = FakeAdmin(amqp_only=amqp_only)
    await create_group(admin, ORDERS, with_user=not amqp_only)
    actions = tuple(admin.performed)
    interrupted = FakeAdmin(amqp_only=amqp_only)
    for action in actions[: min(left, len(actions) - 1)]:
        await interrupted.perform(action)
    created = await create_group(interrupted, ORDERS, with_user=not amqp_only)
    assert created.was_begun
    assert not created.was_there
    assert amqp_only or created.password == interrupted.passwords["orders-app"]
    for what in ("exchanges", "queues", "bindings", "permissions", "records"):
        assert getattr(interrupted, what) == getattr(admin, what), what


@pytest.mark.parametrize("left", range(2, 22))
async def test_what_an_interrupted_create_with_other_attributes_left_is_deleted_first(left: int) -> None:
    other = GroupSpec("orders", "o", hash_count=6, queue_count=6, queue_size_mb=20, client_username="other")
    admin = FakeAdmin()
    await create_group(admin, other)
    actions = tuple(admin.performed)
    interrupted = FakeAdmin()
    for action in actions[: min(left, len(actions) - 1)]:
        await interrupted.perform(action)
    created = await create_group(interrupted, ORDERS)
    assert "queue_count: 6 -> 4" in created.undone
    assert not created.was_there
    assert not created.was_begun
    fresh = FakeAdmin()
    await create_group(fresh, ORDERS)
    for what in ("exchanges", "queues", "bindings", "permissions", "records"):
        assert getattr(interrupted, what) == getattr(fresh, what), what
    assert interrupted.users.keys() == fresh.users.keys()


async def test_attributes_that_no_queue_shows_are_known_of_an_interrupted_create_too() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS.altered(hash_function="java"))
    interrupted = FakeAdmin()
    for action in admin.performed[:-1]:
        await interrupted.perform(action)
    created = await create_group(interrupted, ORDERS)
    assert created.undone == ("hash_function: java -> crc32",)
    assert interrupted.records == {"orders": ORDERS.to_record()}


async def test_messages_in_what_another_create_left_are_not_deleted() -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS.altered(hash_function="java"))
    interrupted = FakeAdmin()
    for action in admin.performed[:-1]:
        await interrupted.perform(action)
    queue = interrupted.queues["lbg.orders.q.0"]
    interrupted.queues["lbg.orders.q.0"] = replace(queue, ready=1)
    with pytest.raises(StillInUse, match="1 message"):
        await create_group(interrupted, ORDERS)
    assert (await create_group(interrupted, ORDERS.altered(hash_function="java"))).was_begun


async def test_a_group_that_is_being_made_is_none_for_who_wants_to_use_it() -> None:
    text = ORDERS.to_unfinished()
    with pytest.raises(GroupUnfinished, match="`lbg group create orders …` again finishes it"):
        spec_in(text, "orders")
    assert GroupSpec.from_unfinished(text, name="orders") == ORDERS
    assert GroupSpec.from_unfinished(ORDERS.to_record(), name="orders") is None


@pytest.mark.parametrize("left", range(2, 20))
async def test_parts_without_a_record_are_finished_by_who_owns_the_name(left: int) -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    parts = [one for one in admin.performed if not isinstance(one, WriteRecord)]
    interrupted = FakeAdmin()
    for action in parts[:left]:
        await interrupted.perform(action)
    if any(isinstance(action, Bind) for action in parts[left:]):
        with pytest.raises(Taken):
            await create_group(interrupted, ORDERS)
    created = await create_group(interrupted, ORDERS, finish=True)
    assert created.was_there
    for what in ("exchanges", "queues", "bindings", "permissions", "records"):
        assert getattr(interrupted, what) == getattr(admin, what), what


async def test_without_a_user_nothing_is_said_or_done_about_users() -> None:
    admin = FakeAdmin()
    admin.users["orders-app"] = UserState("orders-app")
    created = await create_group(admin, ORDERS, with_user=False)
    assert not any(isinstance(change, (PutUser, PutPermissions)) for change in created.changes)
    assert created.password is None


async def test_a_failure_takes_back_everything_that_was_made() -> None:
    steps = len((await create_group(FakeAdmin(), ORDERS)).changes)
    for failing in range(steps):
        admin = FakeAdmin()
        admin.fail_on = _fail_at(admin, failing, Unreachable("gone"))
        with pytest.raises(ApplyFailed, match="all changes before it were rolled back"):
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
        if isinstance(action, WriteRecord) and action.is_final:
            return Unreachable("connection lost")
        if action == DeleteQueue("lbg.orders.q.1"):
            return Unreachable("still lost")
        return None

    admin.fail_on = fail
    with pytest.raises(ApplyFailed) as failed:
        await create_group(admin, ORDERS)
    assert failed.value.left_behind == ("delete queue lbg.orders.q.1 failed: still lost",)
    assert set(admin.queues) == {"lbg.orders.q.1"}


@in_virtual_time
async def test_a_broker_that_stands_still_does_not_keep_who_takes_back() -> None:
    """Each request lasts as long as that of a borrowed channel; an operator would be restarted for it."""

    class Still(FakeAdmin):
        async def perform(self, action: Action) -> None:
            if len(self.performed) > 10:
                await asyncio.sleep(REQUEST_S)
                raise Unreachable("no answer")
            await super().perform(action)

    with suppress(TimeoutError):
        async with asyncio.timeout(REQUEST_S):
            await create_group(Still(), ORDERS)
    assert asyncio.get_running_loop().time() < 3 * REQUEST_S


async def test_a_cancelled_create_is_taken_back() -> None:
    admin = FakeAdmin()
    perform = admin.perform
    reached_the_last_step = asyncio.Event()

    async def perform_slowly(action: Action) -> None:
        if isinstance(action, WriteRecord) and action.is_final:
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
    observed = await admin.observe("orders", desired=ORDERS)

    async def observe(group: str, *, desired: GroupSpec | None = None) -> object:
        return replace(observed, record=Record(ORDERS.to_record(), BY_HAND))

    admin.observe = observe
    admin.fail_on = lambda action: Unreachable("gone") if isinstance(action, PutUser) else None
    with pytest.raises(ApplyFailed):
        await create_group(admin, ORDERS, password="new")
    assert (admin.exchanges, admin.queues, admin.bindings, admin.permissions) == there


async def test_without_a_management_api_an_identical_group_is_declared_again_to_be_sure() -> None:
    admin = FakeAdmin(amqp_only=True)
    await create_group(admin, ORDERS, with_user=False)
    again = await create_group(admin, ORDERS, with_user=False)
    assert {type(change).__name__ for change in again.changes} == {"DeclareExchange", "DeclareQueue", "Bind"}
    assert not any(getattr(change, "is_new", False) for change in again.changes)


def _fail_at(admin: FakeAdmin, step: int, error: Exception):
    failed: list[Action] = []

    def fail(action: Action) -> Exception | None:
        if len(admin.performed) == step and not failed:
            failed.append(action)
            if isinstance(action, DeclareQueue):
                # The broker did it, and the answer was lost.
                admin.queues[action.queue.name] = QueueStatus(0, 0, 0, None, action.queue.arguments)
                if isinstance(error, Refused):
                    del admin.queues[action.queue.name]
            return error
        return None

    return fail
