"""The Secret of a group's user, deleted while the broker is away: what runs goes on, and it is made again."""

from __future__ import annotations

import asyncio

from lbg_operator.kube.kinds import DEPLOYMENT, SECRET
from testing.kubernetes.child_history import ChildHistory
from testing.kubernetes.manifests import consumer
from testing.operator.operated import SETTLED_S, Place
from testing.virtual_time import in_virtual_time

NAME = "orders-lbg"
AWAY_S = 60.0


@in_virtual_time
async def test_it_is_made_again_as_it_was_while_the_broker_is_away() -> None:
    async with Place() as place:
        await place.ready()
        history = ChildHistory(place.cluster)
        history.begin()
        before, passwords = place.seen(SECRET, NAME)["data"], dict(place.broker.passwords)
        place.broker.is_down = True
        await asyncio.sleep(AWAY_S)
        place.cluster.take_away(SECRET, "shop", NAME)
        await asyncio.sleep(2)
        assert place.seen(SECRET, NAME)["data"] == before
        assert "is recreated unchanged" in place.events[-1].message
        assert history.changed().keys() == {("Secret", "shop", NAME)}

        place.edit_group({"replicas": 4})
        await asyncio.sleep(2)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 4
        place.broker.is_down = False
        await asyncio.sleep(AWAY_S)
        assert place.seen(SECRET, NAME)["data"] == before
        assert place.broker.passwords == passwords
        assert place.conditions()["Ready"] == ("True", "Served")


@in_virtual_time
async def test_an_operator_that_never_saw_it_waits_for_the_broker_and_scales_consumers_only() -> None:
    async with Place() as place:
        await place.ready()
        before = place.seen(SECRET, NAME)["data"]
        place.broker.is_down = True
        await place.stop()
        place.cluster.take_away(SECRET, "shop", NAME)
        there = place.seen(DEPLOYMENT)["spec"]
        history = ChildHistory(place.cluster)
        history.begin()
        await place.start()
        await asyncio.sleep(AWAY_S)
        assert history.changed() == {}
        other = {"spec": {"containers": [{"name": "app", "image": "example.org/app:2"}]}}
        place.edit_group({"replicas": 4, "consumer": consumer(template=other)})
        await asyncio.sleep(AWAY_S)
        assert not place.has(SECRET, NAME)
        assert place.seen(DEPLOYMENT)["spec"] == {**there, "replicas": 4}
        assert place.conditions()["Degraded"] == ("True", "SecretLost")
        assert f"Secret {NAME} is gone" in place.message("Degraded")
        assert place.reasons().count("SecretLost") == 1
        place.broker.is_down = False
        await asyncio.sleep(AWAY_S + SETTLED_S)
        assert place.seen(SECRET, NAME)["data"]["password"] != before["password"]
        assert place.seen(DEPLOYMENT)["spec"]["template"] != there["template"]
        assert place.conditions()["Ready"] == ("True", "Served")
        assert place.conditions()["Degraded"] == ("False", "AsExpected")


@in_virtual_time
async def test_an_operator_that_began_in_the_outage_makes_it_again_where_it_was_there_at_the_beginning() -> (
    None
):
    async with Place() as place:
        await place.ready()
        before, passwords = place.seen(SECRET, NAME)["data"], dict(place.broker.passwords)
        place.broker.is_down = True
        await place.restart()
        await asyncio.sleep(AWAY_S)
        place.cluster.take_away(SECRET, "shop", NAME)
        await asyncio.sleep(2)
        assert place.seen(SECRET, NAME)["data"] == before
        place.edit_group({"replicas": 4})
        await asyncio.sleep(2)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 4
        place.broker.is_down = False
        await asyncio.sleep(AWAY_S)
        assert place.broker.passwords == passwords
        assert place.conditions()["Ready"] == ("True", "Served")


@in_virtual_time
async def test_a_secret_that_no_watch_shows_any_more_is_not_called_lost() -> None:
    """Somebody took the label off, by which the operator watches."""
    async with Place() as place:
        await place.ready()
        place.broker.is_down = True
        await place.stop()
        place.cluster.edit(SECRET, "shop", NAME, {"metadata": {"labels": None}})
        await place.start()
        await asyncio.sleep(AWAY_S)
        assert place.conditions()["Degraded"] == ("Unknown", "NotKnown")
        assert place.has(SECRET, NAME)


@in_virtual_time
async def test_a_group_that_nothing_was_made_for_has_lost_no_secret() -> None:
    async with Place() as place:
        place.broker.is_down = True
        await place.ready()
        assert not place.has(SECRET, NAME)
        assert place.conditions()["Degraded"] == ("Unknown", "NotKnown")
