"""Requests of an operator at rest to the API server, counted over hours."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from lbg_operator.kube.kinds import DEPLOYMENT, Kind
from lbg_operator.reconcile.server_side_apply import REPEAT_AFTER_S
from lbg_operator.status.status import TIME_ALONE_S
from testing.needs import repeated
from testing.operator.operated import SETTLED_S, Place
from testing.virtual_time import in_virtual_time

HOUR_S = 3600.0
CHILDREN = 5
"""Secret, ConfigMap, NetworkPolicy, PodDisruptionBudget and Deployment."""


def asked_of(place: Place) -> Counter[str]:
    """Later requests to the cluster, by verb."""
    asked: Counter[str] = Counter()

    def note(verb: str, kind: Kind, name: str) -> None:
        asked[verb] += 1

    place.cluster.fail = note
    return asked


@pytest.mark.long
@pytest.mark.parametrize("groups", repeated([2, 1, 5]))
@in_virtual_time
async def test_a_group_at_rest_reads_nothing_and_writes_its_status_every_five_minutes(groups: int) -> None:
    async with Place() as place:
        await place.ready()
        for number in range(1, groups):
            place.apply_group(f"group-{number}")
        await asyncio.sleep(HOUR_S)
        asked = asked_of(place)
        await asyncio.sleep(HOUR_S)
        assert set(asked) <= {"merge", "apply"}, "no GET, no LIST, no event"
        assert asked["merge"] <= groups * (HOUR_S / TIME_ALONE_S + 1)
        assert asked["apply"] <= groups * CHILDREN * (HOUR_S / REPEAT_AFTER_S + 1)


@in_virtual_time
async def test_a_broker_that_is_away_for_an_hour_costs_no_group_a_write_but_the_first() -> None:
    async with Place() as place:
        await place.ready()
        place.broker.is_down = True
        await asyncio.sleep(60)
        asked = asked_of(place)
        await asyncio.sleep(HOUR_S)
        assert set(asked) <= {"apply"}
        assert asked["apply"] <= CHILDREN * (HOUR_S / REPEAT_AFTER_S + 1)


@pytest.mark.parametrize(
    "spoilt",
    [{"labels": {"app.kubernetes.io/instance": None}}, {"ownerReferences": None}],
    ids=["labels", "owner"],
)
@in_virtual_time
async def test_labels_and_owners_that_somebody_takes_away_are_back_at_once(spoilt: dict[str, object]) -> None:
    """No generation moves with them."""
    async with Place() as place:
        await place.ready()
        before = place.seen(DEPLOYMENT)["metadata"]
        place.cluster.edit(DEPLOYMENT, "shop", "orders", {"metadata": spoilt})
        await asyncio.sleep(SETTLED_S)
        after = place.seen(DEPLOYMENT)["metadata"]
        assert (after["labels"], after["ownerReferences"]) == (before["labels"], before["ownerReferences"])
