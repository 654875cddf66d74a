"""Owners of groups, and the requests that are refused to everybody else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from lbg_core.admin.actions import Action, PutUser
from lbg_core.admin.errors import ApplyFailed, GroupDiffers, GroupNotFound, NotOwned, Taken, Unreachable
from lbg_core.admin.groups import (
    adopt_group,
    check_owned,
    close_group,
    create_group,
    delete_group,
    delete_own,
    finish_rotation,
    rotate_user,
    show_group,
)
from lbg_core.admin.record import (
    BY_HAND,
    CLAIM_BY_HAND,
    Claim,
    Record,
    is_same_owner,
    kubernetes_owner,
    owner_text,
)
from lbg_core.group import GroupSpec
from testing.admin.fake_admin import FakeAdmin
from testing.admin.native_groups import made as native

ORDERS = GroupSpec("orders", hash_count=8, queue_count=4, queue_size_mb=10)
OBJECT = kubernetes_owner("cluster", "object")
OTHER = kubernetes_owner("cluster", "another-object")
CLAIM = Claim(OBJECT, "secret", remedy="take it over")


def state(admin: FakeAdmin) -> tuple[object, ...]:
    return (
        dict(admin.exchanges),
        dict(admin.queues),
        set(admin.bindings),
        dict(admin.users),
        dict(admin.passwords),
        dict(admin.permissions),
        dict(admin.records),
        dict(admin.owners),
    )


async def made(owner: str, *, password: str = "secret") -> FakeAdmin:
    """A broker with group `orders`."""
    admin = FakeAdmin()
    await create_group(admin, ORDERS, password=password, claim=Claim(owner))
    return admin


async def create_for(admin: FakeAdmin, claim: Claim, spec: GroupSpec = ORDERS) -> None:
    await create_group(admin, spec, password=claim.password, claim=claim, finish=True)


@pytest.mark.parametrize("owner", [BY_HAND, OBJECT])
async def test_a_new_groups_record_names_its_owner_from_the_first_step(owner: str) -> None:
    admin = await made(owner)
    records = [action.record.owner for action in admin.performed if hasattr(action, "record")]
    assert records == [owner, owner]
    assert (await show_group(admin, "orders")).owner == owner


@pytest.mark.parametrize(
    ("owner", "claim"),
    [(BY_HAND, CLAIM), (OTHER, CLAIM), (OBJECT, CLAIM_BY_HAND), (OBJECT, replace(CLAIM, owner=OTHER))],
    ids=["by hand", "another object", "Kubernetes", "an object that is gone"],
)
@pytest.mark.parametrize("wanted", [ORDERS, replace(ORDERS, queue_count=8)], ids=["alike", "different"])
async def test_a_group_of_another_owner_is_neither_changed_nor_described(
    owner: str, claim: Claim, wanted: GroupSpec
) -> None:
    admin = await made(owner, password="theirs")
    before = state(admin)
    for change in (
        create_group(admin, wanted, password="mine", claim=claim, finish=True),
        delete_own(admin, wanted, claim=claim, is_made=True, force=True),
        delete_own(admin, wanted, claim=claim, is_made=False, force=True),
        check_owned(admin, wanted, claim=claim, is_made=False),
    ):
        with pytest.raises(NotOwned) as refused:
            await change
        assert str(refused.value) == (
            "group 'orders' on this broker has another owner, and nothing was changed there: "
            + (claim.remedy or "change its Kubernetes object, or `lbg group adopt orders` takes it over")
        )
    assert state(admin) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda admin: delete_group(admin, "orders", force=True),
        lambda admin: rotate_user(admin, "orders"),
        lambda admin: rotate_user(admin, "orders", username="orders-b"),
        lambda admin: finish_rotation(admin, "orders", force=True),
    ],
    ids=["delete", "rotate", "rotate to a new user", "finish"],
)
async def test_the_command_line_changes_a_group_of_kubernetes_once_it_is_adopted(
    change: Callable[[FakeAdmin], Awaitable[object]],
) -> None:
    admin = await made(OBJECT)
    before = state(admin)
    with pytest.raises(NotOwned, match="`lbg group adopt orders` takes it over"):
        await change(admin)
    assert state(admin) == before
    adopted = await adopt_group(admin, "orders")
    assert adopted.before == OBJECT
    assert admin.owners == {"orders": BY_HAND}
    assert state(admin)[:-1] == before[:-1], "nothing but the owner"
    await change(admin)


async def test_who_works_by_hand_adopts_once_and_only_what_is_there() -> None:
    admin = await made(BY_HAND)
    assert not (await adopt_group(admin, "orders")).is_changed
    with pytest.raises(GroupNotFound):
        await adopt_group(admin, "invoices")


async def test_an_adoption_leaves_a_record_by_hand_as_it_is() -> None:
    admin = await made(BY_HAND)
    admin.objects["orders"] = "team/orders"
    performed = len(admin.performed)
    assert not (await adopt_group(admin, "orders")).is_changed
    assert admin.performed[performed:] == []
    assert admin.objects["orders"] == "team/orders"


async def test_the_owner_creates_again_and_changes_nothing() -> None:
    admin = await made(OBJECT)
    before = state(admin)
    await create_for(admin, CLAIM)
    assert state(admin) == before
    with pytest.raises(GroupDiffers, match="queue_count"):
        await create_for(admin, CLAIM, replace(ORDERS, queue_count=8))


async def test_a_claim_that_adopts_takes_the_group_over_with_its_password() -> None:
    admin = await made(BY_HAND, password="theirs")
    await create_for(admin, replace(CLAIM, adopts=True))
    assert admin.owners == {"orders": OBJECT}
    assert admin.passwords["orders"] == "secret"
    assert admin.records == {"orders": ORDERS.to_record()}
    await delete_own(admin, ORDERS, claim=CLAIM, is_made=False)
    assert admin.holds_nothing()


async def test_an_adoption_that_fails_leaves_the_owner_as_it_was() -> None:
    admin = await made(BY_HAND, password="theirs")

    def fail(action: Action) -> Exception | None:
        return Unreachable("gone") if isinstance(action, PutUser) else None

    admin.fail_on = fail
    with pytest.raises(ApplyFailed):
        await create_for(admin, replace(CLAIM, adopts=True))
    assert admin.owners == {"orders": BY_HAND}


async def test_a_group_in_use_that_lost_its_record_is_no_objects_but_by_the_password() -> None:
    admin = await made(OTHER, password="theirs")
    admin.records.clear()
    admin.queues["lbg.orders.q.0"] = replace(admin.queues["lbg.orders.q.0"], consumers=1)
    before = state(admin)
    for change in (create_for(admin, CLAIM), delete_own(admin, ORDERS, claim=CLAIM, is_made=False)):
        with pytest.raises(NotOwned):
            await change
    assert state(admin) == before
    await create_for(admin, replace(CLAIM, password="theirs"))
    assert admin.owners == {"orders": OBJECT}


async def test_parts_in_use_without_a_record_are_not_described_to_an_object() -> None:
    admin = await made(BY_HAND)
    admin.records.clear()
    del admin.queues["lbg.orders.config"], admin.queues["lbg.orders.q.3"]
    admin.queues["lbg.orders.q.0"] = replace(admin.queues["lbg.orders.q.0"], ready=7)
    with pytest.raises(NotOwned, match="another owner"):
        await create_for(admin, CLAIM)
    with pytest.raises(Taken, match="7 messages"):
        await create_group(admin, ORDERS)


async def test_what_another_owners_killed_create_left_is_not_deleted() -> None:
    whole = await made(OTHER)
    admin = FakeAdmin()
    for action in whole.performed[:-1]:
        await admin.perform(action)
    before = state(admin)
    for claim in (CLAIM, CLAIM_BY_HAND):
        with pytest.raises(NotOwned):
            await create_group(admin, replace(ORDERS, queue_count=8), claim=claim)
    assert state(admin) == before


@pytest.mark.parametrize("owner", [BY_HAND, OBJECT])
async def test_a_record_that_is_rewritten_keeps_its_owner(owner: str) -> None:
    admin = await native("Sessions")
    admin.owners["orders"] = owner
    await close_group(admin, "orders")
    assert admin.owners == {"orders": owner}
    if owner == BY_HAND:
        await rotate_user(admin, "orders", username="orders-2")
        assert admin.owners == {"orders": owner}


def test_an_owner_is_compared_by_the_object_where_the_cluster_is_unknown() -> None:
    unread = kubernetes_owner("", "object")
    assert is_same_owner(unread, OBJECT)
    assert is_same_owner(OBJECT, unread)
    assert not is_same_owner(kubernetes_owner("elsewhere", "object"), OBJECT)
    assert not is_same_owner(kubernetes_owner("", "another-object"), OBJECT)
    assert not is_same_owner(BY_HAND, OBJECT)


def test_an_owner_that_is_recorded_keeps_the_cluster_that_was_known() -> None:
    unread, text = Claim(kubernetes_owner("", "object")), ORDERS.to_record()
    assert unread.owner_after(Record(text, OBJECT)) == OBJECT
    assert CLAIM.owner_after(Record(text, unread.owner)) == OBJECT
    assert CLAIM.owner_after(Record(text, BY_HAND)) == OBJECT
    assert CLAIM_BY_HAND.owner_after(None) == BY_HAND


def test_an_owner_is_told_to_people() -> None:
    assert owner_text(BY_HAND) == "by hand"
    assert owner_text("") == "not read"
    assert owner_text(OBJECT) == "Kubernetes object object of cluster cluster"
    assert owner_text(kubernetes_owner("", "object")) == "Kubernetes object object of cluster unknown"
