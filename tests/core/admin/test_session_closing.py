"""Closing a group in mode Sessions, or one session of it."""

from __future__ import annotations

import pytest

from lbg_core.admin.actions import ActOnQueue
from lbg_core.admin.errors import GroupNotFound, RecordUnreadable, SessionNotFound, Unsupported
from lbg_core.admin.groups import close_group, create_group, rotate_user
from lbg_core.group import is_closed_in
from testing.admin.fake_admin import FakeAdmin
from testing.admin.native_groups import SESSIONS, made, spec_in


def acts(admin: FakeAdmin) -> list[ActOnQueue]:
    return [one for one in admin.performed if isinstance(one, ActOnQueue)]


async def test_closing_a_group_closes_its_queue_and_tells_what_is_left() -> None:
    admin = await made("Sessions")

    left = await close_group(admin, "orders")

    assert acts(admin) == [ActOnQueue("lbg.orders.q", "close")]
    assert is_closed_in(admin.records["orders"])
    assert left.to_json()["pool"] == 12


async def test_closing_one_session_asks_for_that_one() -> None:
    admin = await made("Sessions")

    await close_group(admin, "orders", session="m2")

    assert acts(admin) == [ActOnQueue("lbg.orders.q", "close-session", {"session": "m2"})]


async def test_what_is_closed_already_is_left_as_it_is() -> None:
    admin = await made("Sessions", said={**SESSIONS, "closed": True})

    await close_group(admin, "orders")
    before = list(admin.performed)
    await close_group(admin, "orders")
    await close_group(admin, "orders", session="m3")

    assert acts(admin) == []
    assert admin.performed == before


async def test_a_closed_group_stays_closed_when_its_user_changes() -> None:
    admin = await made("Sessions")
    await close_group(admin, "orders")

    await rotate_user(admin, "orders", username="orders-2")

    assert is_closed_in(admin.records["orders"])
    assert (await create_group(admin, spec_in("Sessions", username="orders-2"))).changes == ()


async def test_a_session_that_is_not_there_is_refused_with_those_that_are() -> None:
    admin = await made("Sessions")

    with pytest.raises(SessionNotFound) as refused:
        await close_group(admin, "orders", session="m7")

    assert str(refused.value) == "group 'orders' has no session 'm7'; its sessions: 'm1', 'm2', 'm3'"
    assert acts(admin) == []


async def test_of_many_sessions_a_refusal_names_a_few() -> None:
    many = [{**SESSIONS["sessions"][0], "session": f"s{number:02}"} for number in range(30)]
    admin = await made("Sessions", said={**SESSIONS, "sessions": many})

    with pytest.raises(SessionNotFound, match=r"'s00', 's01', .*'s04' and 25 more$"):
        await close_group(admin, "orders", session="m7")


@pytest.mark.parametrize("mode", ["Exclusive", "Partitioned", "MessageGroups"])
async def test_a_group_without_sessions_cannot_be_closed(mode: str) -> None:
    admin = FakeAdmin()
    await create_group(admin, spec_in(mode))

    with pytest.raises(Unsupported) as refused:
        await close_group(admin, "orders")

    assert str(refused.value) == (
        f"group 'orders' is in mode {mode}, and only a group in mode Sessions can be closed: stop its publishers, and "
        "`lbg group delete orders` when it is drained"
    )


async def test_a_group_that_is_not_there_cannot_be_closed() -> None:
    with pytest.raises(GroupNotFound):
        await close_group(FakeAdmin(), "orders")


async def test_without_a_record_nobody_knows_what_to_close() -> None:
    admin = await made("Sessions")
    del admin.records["orders"]

    with pytest.raises(RecordUnreadable):
        await close_group(admin, "orders")


async def test_without_the_management_api_a_group_cannot_be_closed() -> None:
    admin = await made("Sessions")
    admin.amqp_only = True

    with pytest.raises(Unsupported) as refused:
        await close_group(admin, "orders")

    assert str(refused.value) == (
        "group 'orders' cannot be closed: its sessions are unknown (no reason known); give the management API's "
        "address with --management"
    )


async def test_a_group_whose_queue_is_gone_cannot_be_closed() -> None:
    admin = await made("Sessions")
    del admin.queues["lbg.orders.q"]

    with pytest.raises(Unsupported) as refused:
        await close_group(admin, "orders")

    assert str(refused.value) == (
        "group 'orders' cannot be closed: queue lbg.orders.q is missing, or has no sessions"
    )
