"""A new password, or a new user beside the old one: planned, performed, taken back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lbg_core.admin.actions import Action, PutPermissions, PutUser, WriteRecord
from lbg_core.admin.errors import (
    ApplyFailed,
    GroupNotFound,
    RecordUnreadable,
    StillInUse,
    Taken,
    Unreachable,
    Unsupported,
)
from lbg_core.admin.groups import (
    create_group,
    delete_group,
    finish_rotation,
    plan_finish,
    rotate_user,
    show_group,
)
from lbg_core.admin.snapshot import UNKNOWN, Policy, UserState
from lbg_core.group import GroupSpec, SpecError
from testing.admin.fake_admin import FakeAdmin
from testing.admin.problem_lines import problem_lines

ORDERS = GroupSpec("orders", "orders", hash_count=8, queue_count=2, queue_size_mb=10, client_username="app")


@pytest.fixture
async def admin() -> FakeAdmin:
    admin = FakeAdmin()
    await create_group(admin, ORDERS, password="first")
    admin.performed.clear()
    return admin


async def test_a_new_password_changes_nothing_else(admin: FakeAdmin) -> None:
    rotated = await rotate_user(admin, "orders", password="second")
    assert [str(change) for change in rotated.changes] == ["set the password of user app"]
    assert (admin.passwords["app"], rotated.password) == ("second", None)
    assert "second" not in repr(rotated)


async def test_a_password_is_generated_where_none_is_given(admin: FakeAdmin) -> None:
    rotated = await rotate_user(admin, "orders")
    assert rotated.password == admin.passwords["app"] != "first"


async def test_a_new_user_may_do_the_same_and_is_the_records_while_the_old_one_stays(
    admin: FakeAdmin,
) -> None:
    await rotate_user(admin, "orders", username="app-b", password="second")
    assert admin.passwords == {"app": "first", "app-b": "second"}
    assert admin.permissions["app-b"] == admin.permissions["app"]
    shown = await show_group(admin, "orders")
    assert shown.spec is not None
    assert shown.spec.client_username == "app-b"
    assert problem_lines(shown) == [
        "user app was the group's before: `lbg group rotate orders --finish` deletes it"
    ]


async def test_the_old_user_goes_when_nobody_uses_it(admin: FakeAdmin) -> None:
    await rotate_user(admin, "orders", username="app-b")
    admin.connections = {"app": 3, "app-b": 1}
    with pytest.raises(
        StillInUse, match=r"user app has 3 connections; have its clients log in as the new user"
    ):
        await finish_rotation(admin, "orders")
    admin.connections = {"app-b": 1}
    assert [str(done) for done in await finish_rotation(admin, "orders")] == ["delete user app"]
    assert set(admin.users) == {"app-b"}
    assert await finish_rotation(admin, "orders") == ()


async def test_a_user_whose_connections_are_unknown_is_not_deleted(admin: FakeAdmin) -> None:
    await rotate_user(admin, "orders", username="app-b")
    observed = replace(await admin.observe("orders"), connections=UNKNOWN)
    with pytest.raises(StillInUse, match="the connections of user app are unknown"):
        plan_finish("orders", observed, force=False)
    assert [str(action) for action in plan_finish("orders", observed, force=True)] == ["delete user app"]


async def test_force_deletes_the_old_user_with_its_connections(admin: FakeAdmin) -> None:
    await rotate_user(admin, "orders", username="app-b")
    admin.connections = {"app": 3}
    await finish_rotation(admin, "orders", force=True)
    assert set(admin.users) == {"app-b"}


async def test_a_rotation_goes_back_to_a_user_that_the_group_had(admin: FakeAdmin) -> None:
    """Two users in turn, for those who rotate every month."""
    for username in ("app-b", "app", "app-b"):
        await rotate_user(admin, "orders", username=username, password=f"of {username}")
        await finish_rotation(admin, "orders")
        assert set(admin.users) == {username}
        assert admin.permissions[username]


async def test_a_rotation_that_fails_leaves_user_and_record_as_they_were(admin: FakeAdmin) -> None:
    before = (dict(admin.users), dict(admin.permissions), dict(admin.records))
    for kind in (PutUser, PutPermissions, WriteRecord):
        admin.fail_on = failing_once(kind)
        with pytest.raises(ApplyFailed, match="all changes before it were rolled back"):
            await rotate_user(admin, "orders", username="app-b")
        assert (admin.users, admin.permissions, admin.records) == before


async def test_another_users_name_is_taken(admin: FakeAdmin) -> None:
    admin.users["guest"] = UserState("guest")
    with pytest.raises(Taken, match="user 'guest' exists"):
        await rotate_user(admin, "orders", username="guest")
    with pytest.raises(SpecError, match="colon"):
        await rotate_user(admin, "orders", username="a:b")


async def test_a_group_with_no_user_or_no_record_or_that_is_not_there_is_told() -> None:
    with pytest.raises(GroupNotFound):
        await rotate_user(FakeAdmin(), "orders")
    admin = FakeAdmin(amqp_only=True)
    await create_group(admin, ORDERS, with_user=False)
    with pytest.raises(Unsupported, match="the group's user cannot be changed"):
        await rotate_user(admin, "orders")
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    admin.records.clear()
    with pytest.raises(RecordUnreadable):
        await rotate_user(admin, "orders")


async def test_a_group_made_without_a_user_gets_one(admin: FakeAdmin) -> None:
    admin = FakeAdmin()
    await create_group(admin, ORDERS, with_user=False)
    await rotate_user(admin, "orders", password="first")
    assert (admin.passwords, set(admin.permissions)) == ({"app": "first"}, {"app"})


async def test_a_policy_does_not_stand_in_the_way_of_a_new_password(admin: FakeAdmin) -> None:
    admin.policies = (Policy("limit", ".*", "all", 0, {"delivery-limit": 1}),)
    await rotate_user(admin, "orders", password="second")
    assert admin.passwords["app"] == "second"


async def test_a_deleted_group_takes_every_user_it_had_with_it(admin: FakeAdmin) -> None:
    await rotate_user(admin, "orders", username="app-b")
    await delete_group(admin, "orders")
    assert admin.users == {}


def failing_once(kind: type):
    failed: list[Action] = []

    def fail(action: Action) -> Exception | None:
        if isinstance(action, kind) and not failed:
            failed.append(action)
            return Unreachable("gone")
        return None

    return fail
