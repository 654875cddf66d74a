"""`spec.assignment`: the group's record has it, its members read it, and no pod is restarted for it."""

from __future__ import annotations

import asyncio

import pytest

from lbg_core.admin.actions import Announce
from lbg_core.group import BALANCED, STATIC, GroupSpec
from lbg_core.group.members_protocol import Assign
from lbg_operator.kube.kinds import GROUP
from testing.operator.operated import MOVING_S, Place
from testing.virtual_time import in_virtual_time

GROUP_NAME = "shop-orders"


def assignment(place: Place) -> str:
    return GroupSpec.from_record(place.broker.records[GROUP_NAME], name=GROUP_NAME).assignment


def announced(place: Place) -> int:
    sent = [one.message for one in place.broker.performed if isinstance(one, Announce)]
    return sum(isinstance(one, Assign) for one in sent)


@in_virtual_time
async def test_an_assignment_is_changed_and_changed_back() -> None:
    async with Place() as place:
        await place.ready()
        assert (assignment(place), announced(place)) == (BALANCED, 1)
        for number, wanted in enumerate((STATIC, BALANCED), 2):
            place.edit_group({"assignment": wanted})
            await asyncio.sleep(10)
            assert (assignment(place), announced(place)) == (wanted, number)
            assert place.conditions()["Provisioned"] == ("True", "Provisioned")


@in_virtual_time
async def test_an_assignment_is_changed_with_the_number_of_queues_and_behind_it() -> None:
    async with Place() as place:
        await place.ready()
        place.broker.passes_fences = False
        place.edit_group({"queues": {"count": 12}, "assignment": STATIC})
        await asyncio.sleep(MOVING_S)
        assert place.broker.key_move[GROUP_NAME]
        assert assignment(place) == BALANCED
        before = announced(place)
        place.broker.passes_fences = True
        await place.restart()
        await asyncio.sleep(700)
        assert not place.broker.key_move[GROUP_NAME]
        assert assignment(place) == STATIC
        assert announced(place) > before
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")


@pytest.mark.parametrize("is_down", [False, True])
@in_virtual_time
async def test_a_group_whose_assignment_was_never_changed_on_the_broker_is_deleted(is_down: bool) -> None:
    async with Place() as place:
        await place.ready(drainTimeoutSeconds=30)
        place.broker.is_down = is_down
        place.edit_group({"assignment": STATIC})
        place.delete_group()
        await asyncio.sleep(2)
        place.broker.is_down = False
        await asyncio.sleep(60)
        assert not place.has(GROUP)
        assert place.broker.holds_nothing()
