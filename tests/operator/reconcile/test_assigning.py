"""`spec.assignment`: the group's record has it, with Static also the number of consumers. Members read both, and no pod
is restarted for them."""

from __future__ import annotations

import asyncio

import pytest

from lbg_core.admin.actions import Announce, PutFence
from lbg_core.group import BALANCED, BY_LOAD, EMBEDDED, RABBITMQ, STATIC, Engine, GroupSpec
from lbg_core.group.members_protocol import Assign
from lbg_operator.kube.kinds import DEPLOYMENT, GROUP
from testing.operator.operated import MOVING_S, Place
from testing.virtual_time import in_virtual_time

GROUP_NAME = "shop-orders"


def recorded(place: Place) -> GroupSpec:
    return GroupSpec.from_record(place.broker.records[GROUP_NAME], name=GROUP_NAME)


def assignment(place: Place) -> str:
    return recorded(place).assignment


def told(place: Place) -> list[Assign]:
    sent = [one.message for one in place.broker.performed if isinstance(one, Announce)]
    return [one for one in sent if isinstance(one, Assign)]


def announced(place: Place) -> int:
    return len(told(place))


@in_virtual_time
async def test_an_assignment_is_changed_and_changed_back() -> None:
    async with Place() as place:
        await place.ready()
        assert (assignment(place), announced(place)) == (BY_LOAD, 1)
        for number, wanted in enumerate((STATIC, BY_LOAD), 2):
            place.edit_group({"assignment": wanted})
            await asyncio.sleep(10)
            assert (assignment(place), announced(place)) == (wanted, number)
            assert place.conditions()["Provisioned"] == ("True", "Provisioned")


@in_virtual_time
@pytest.mark.parametrize("restarts", [True, False])
async def test_an_assignment_is_changed_with_the_number_of_queues_and_behind_it(restarts: bool) -> None:
    async with Place() as place:
        await place.ready()
        place.broker.passes_fences = False
        place.edit_group({"queues": {"count": 12}, "assignment": STATIC})
        await asyncio.sleep(MOVING_S)
        assert place.broker.key_move[GROUP_NAME]
        assert assignment(place) == BY_LOAD
        before = announced(place)
        assert told(place)[-1].assignment == BY_LOAD, "members are told what the record has"
        place.broker.passes_fences = True
        for fence in [one for one in place.broker.performed if isinstance(one, PutFence)]:
            await place.broker.perform(fence)
        if restarts:
            await place.restart()
        await asyncio.sleep(700)
        assert not place.broker.key_move[GROUP_NAME]
        assert assignment(place) == STATIC
        assert announced(place) > before
        assert (told(place)[-1].assignment, told(place)[-1].max_clients) == (
            STATIC,
            recorded(place).max_clients,
        )
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")


@in_virtual_time
async def test_static_divides_by_the_highest_number_of_consumers() -> None:
    async with Place() as place:
        await place.ready(assignment=STATIC, scaling={"maxReplicas": 4, "targetLag": 500})
        assert recorded(place).max_clients == 4
        template = place.seen(DEPLOYMENT)["spec"]["template"]
        for number, most in enumerate((6, 3), 2):
            place.edit_group({"scaling": {"maxReplicas": most}})
            await asyncio.sleep(10)
            assert (recorded(place).max_clients, announced(place)) == (most, number)
        place.edit_group({"assignment": BALANCED})
        await asyncio.sleep(10)
        assert not recorded(place).limits_clients
        assert place.seen(DEPLOYMENT)["spec"]["template"] == template


@in_virtual_time
async def test_a_limit_of_static_does_not_outlast_it() -> None:
    async with Place() as place:
        await place.ready(assignment=STATIC, scaling={"maxReplicas": 6, "targetLag": 500})
        fewer = {"queues": {"count": 4}, "scaling": {"maxReplicas": 4}, "replicas": 2}
        place.edit_group({"assignment": BALANCED, **fewer})
        await asyncio.sleep(700)
        spec = recorded(place)
        assert (spec.queue_count, spec.assignment, spec.limits_clients) == (4, BALANCED, False)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")


@pytest.mark.parametrize(
    ("engine", "outcome"),
    [
        (Engine(EMBEDDED, (0, 1, 0)), ("False", "Unsupported")),
        (Engine(RABBITMQ, (4, 0, 5)), ("True", "Provisioned")),
    ],
    ids=str,
)
@in_virtual_time
async def test_partitions_of_the_embedded_broker_have_no_assignment(
    engine: Engine, outcome: tuple[str, str]
) -> None:
    async with Place() as place:
        place.broker.engine = engine
        await place.ready(mode="Partitioned")
        place.edit_group({"assignment": BY_LOAD})
        await asyncio.sleep(10)
        assert place.conditions()["Provisioned"] == outcome
        assert assignment(place) == (BY_LOAD if outcome[0] == "True" else BALANCED)
        if outcome[0] == "False":
            assert "leave out assignment ByLoad" in place.message("Provisioned")


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
