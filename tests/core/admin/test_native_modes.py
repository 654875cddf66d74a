"""Groups in modes Partitioned, MessageGroups and Sessions: made, compared, refused where an engine lacks them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from lbg_core.admin.actions import Action, DeclareQueue
from lbg_core.admin.errors import ApplyFailed, GroupDiffers, Refused, StillInUse, Unsupported
from lbg_core.admin.groups import create_group, delete_group, rotate_user, show_group
from lbg_core.admin.lag import in_flight_of_one_queue
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.group import NATIVE_MODES, Engine
from lbg_core.group.member_state import Identity, QueueState, Role, Status
from lbg_core.group.members_protocol import Beat
from testing.admin.fake_admin import FakeAdmin
from testing.admin.native_groups import PARTITIONS, made, spec_in
from testing.admin.problem_lines import problem_lines

RABBIT = Engine.parse("RabbitMQ", "4.0.5")


@pytest.mark.parametrize("mode", NATIVE_MODES)
async def test_a_group_is_made_as_one_queue_and_making_it_again_changes_nothing(mode: str) -> None:
    admin = FakeAdmin()

    created = await create_group(admin, spec_in(mode))
    again = await create_group(admin, spec_in(mode))

    assert created.changes
    assert sorted(admin.queues) == [
        "lbg.orders.config",
        "lbg.orders.dead",
        "lbg.orders.q",
        "lbg.orders.unrouted",
    ]
    assert again.changes == ()


@pytest.mark.parametrize(
    ("mode", "refusal"),
    [
        (
            "MessageGroups",
            "group 'orders' is not possible on RabbitMQ 4.0.5: it has no mode MessageGroups: no queue of RabbitMQ "
            "gives the messages of a key to one consumer at a time; use mode Exclusive with assignment ByLoad and 8 to "
            "16 queues for each member, where a key stays in its queue, and the keys of a queue move to another member "
            "together, and the embedded broker has mode MessageGroups itself",
        ),
        (
            "Sessions",
            "group 'orders' is not possible on RabbitMQ 4.0.5: it has no mode Sessions: no queue of RabbitMQ numbers "
            "its messages for sessions; the nearest there is mode Exclusive with members that remember what they have "
            "processed (docs/exactly-once.md), and the embedded broker has mode Sessions itself",
        ),
    ],
)
async def test_rabbitmq_is_not_asked_for_what_it_lacks(mode: str, refusal: str) -> None:
    admin = FakeAdmin(engine=RABBIT)

    with pytest.raises(Unsupported) as refused:
        await create_group(admin, spec_in(mode))

    assert str(refused.value) == refusal
    assert admin.holds_nothing()


async def test_on_rabbitmq_partitions_are_queues() -> None:
    admin = FakeAdmin(engine=RABBIT)

    await create_group(admin, spec_in("Partitioned"))

    assert {"lbg.orders.q.0", "lbg.orders.q.1"} < admin.queues.keys()
    assert "lbg.orders.q" not in admin.queues


async def test_another_refusal_of_the_queue_is_told_as_it_is() -> None:
    admin = FakeAdmin()
    admin.fail_on = lambda action: (
        Refused("406: the disk is full", status=406) if _is_parent(action) else None
    )

    with pytest.raises(ApplyFailed, match="the disk is full"):
        await create_group(admin, spec_in("Sessions"))


def _is_parent(action: Action) -> bool:
    return isinstance(action, DeclareQueue) and action.queue.name == "lbg.orders.q"


async def test_other_times_of_partitions_are_a_difference() -> None:
    admin = await made("Partitioned")

    with pytest.raises(GroupDiffers) as differs:
        await create_group(admin, spec_in("Partitioned", rebalance_delay_s=8, max_handoff_s=0.5))

    assert differs.value.problem.figures["diff"] == (
        "rebalance_delay_s: 5.0 -> 8.0",
        "max_handoff_s: 3.0 -> 0.5",
    )


async def test_an_ingress_that_somebody_closed_is_told_of_and_opened() -> None:
    admin = await made("Partitioned", said={**PARTITIONS, "ingress": False})

    shown = await show_group(admin, "orders")
    repaired = await create_group(admin, spec_in("Partitioned"))

    assert problem_lines(shown) == [
        "lbg.orders.q refuses publishers, its ingress is closed: `lbg group create orders …` with the group's own "
        "attributes repairs it"
    ]
    assert [str(one) for one in repaired.changes] == ["ingress open=True on queue lbg.orders.q"]


async def test_a_group_does_not_change_its_mode() -> None:
    admin = await made("MessageGroups")

    with pytest.raises(GroupDiffers) as differs:
        await create_group(admin, spec_in("Sessions"))

    assert differs.value.problem.figures["diff"] == ("mode: MessageGroups -> Sessions",)


async def test_a_queue_of_another_kind_is_a_difference_argument_by_argument() -> None:
    admin = await made("Partitioned")
    queue = admin.queues["lbg.orders.q"]
    assert queue.arguments is not UNKNOWN
    admin.queues["lbg.orders.q"] = replace(queue, arguments={**queue.arguments, "x-partition-count": 3})

    with pytest.raises(GroupDiffers) as differs:
        await create_group(admin, spec_in("Partitioned"))

    assert differs.value.problem.figures["diff"] == ("queue lbg.orders.q x-partition-count: 3 -> 2",)


@pytest.mark.parametrize("mode", NATIVE_MODES)
async def test_a_group_with_messages_is_deleted_by_force_only(mode: str) -> None:
    admin = await made(mode)

    with pytest.raises(StillInUse, match=re.escape("lbg.orders.q has 13 messages, 1 consumer")):
        await delete_group(admin, "orders")
    await delete_group(admin, "orders", force=True)

    assert admin.holds_nothing()


@pytest.mark.parametrize("mode", NATIVE_MODES)
async def test_a_new_user_may_do_on_the_one_queue_what_the_one_before_may(mode: str) -> None:
    admin = await made(mode)

    await rotate_user(admin, "orders", username="orders-2")

    assert admin.permissions["orders-2"] == admin.permissions["orders-app"]


def _member(index: int, *in_flight: int) -> Beat:
    queues = tuple(
        QueueState(number, Role.PRIMARY, True, Status.READY, count) for number, count in enumerate(in_flight)
    )
    return Beat(Identity(index, f"m{index}", "af"), queues)


def test_what_members_of_one_queue_have_in_flight_counts_once_all_of_them_are_heard() -> None:
    members = [_member(0, 3, 4), _member(1, 5)]

    assert in_flight_of_one_queue(members, 2) == 12
    assert in_flight_of_one_queue(members, 3) is UNKNOWN
    assert in_flight_of_one_queue([], 0) == 0
