"""Secrets that rounds look at: watched, and so no request of any round."""

from __future__ import annotations

import asyncio
from base64 import b64encode

import pytest

from lbg_operator.kube.api import ClusterError
from lbg_operator.kube.kinds import BROKER, GROUP, SECRET, Kind
from lbg_operator.reconcile.object_cache import Key, ObjectCache
from lbg_operator.reconcile.secret_cache import RETRY_MAX_S, SecretCache
from testing.kubernetes.fake_cluster import FakeCluster
from testing.operator.operated import MAIN, SETTLED_S, Place
from testing.virtual_time import in_virtual_time

HOUR_S = 3600.0
ADMIN = Key("shop", "main-admin")


def data(**told: str) -> dict[str, str]:
    return {name: b64encode(value.encode()).decode() for name, value in told.items()}


def about_secrets(place: Place) -> list[tuple[str, str]]:
    """Later requests to the cluster about Secrets."""
    asked: list[tuple[str, str]] = []

    def note(verb: str, kind: Kind, name: str) -> None:
        if kind is SECRET:
            asked.append((verb, name))

    place.cluster.fail = note
    return asked


@in_virtual_time
async def test_an_hour_at_rest_asks_for_no_secret_of_a_rabbitmq_and_its_group() -> None:
    async with Place() as place:
        await place.ready()
        asked = about_secrets(place)
        await asyncio.sleep(HOUR_S)
        assert [one for one in asked if one[0] != "apply"] == []


@in_virtual_time
async def test_an_hour_at_rest_asks_for_no_secret_of_an_embedded_broker() -> None:
    async with Place() as place:
        place.broker.password = None
        place.apply_broker(rabbitmq=None, embedded={"storage": {"size": "1Gi"}})
        await place.start()
        await asyncio.sleep(SETTLED_S)
        asked = about_secrets(place)
        await asyncio.sleep(HOUR_S)
        assert [one for one in asked if one[0] != "apply"] == []


@in_virtual_time
async def test_a_broker_that_is_away_for_an_hour_costs_no_request_for_its_secret() -> None:
    async with Place() as place:
        await place.ready()
        place.broker.is_down = True
        asked = about_secrets(place)
        await asyncio.sleep(HOUR_S)
        assert [one for one in asked if one[0] != "apply"] == []


@in_virtual_time
async def test_a_password_that_is_corrected_is_used_at_once() -> None:
    async with Place() as place:
        await place.ready()
        place.cluster.edit(SECRET, *ADMIN, {"data": data(password="wrong")})
        await asyncio.sleep(1)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("False", "LoginRefused")
        place.cluster.edit(SECRET, *ADMIN, {"data": data(password="admin")})
        await asyncio.sleep(1)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("True", "Reachable")


@in_virtual_time
async def test_a_secret_that_is_deleted_and_made_again_is_seen_both_times() -> None:
    async with Place() as place:
        await place.ready()
        place.cluster.take_away(SECRET, *ADMIN)
        await asyncio.sleep(1)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("False", "SecretMissing")
        place.give_secret("main-admin", username="admin", password="admin")
        await asyncio.sleep(1)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("True", "Reachable")


@in_virtual_time
async def test_another_secret_is_watched_when_the_manifest_names_another_and_none_when_it_is_gone() -> None:
    async with Place() as place:
        await place.ready(consumes=False)
        place.give_secret("other", username="admin", password="admin")
        place.cluster.edit(BROKER, *MAIN, {"spec": {"rabbitmq": {"adminSecretName": "other"}}})
        await asyncio.sleep(1)
        accesses = len(place.broker.accesses)
        place.cluster.edit(SECRET, *ADMIN, {"data": data(password="of no interest")})
        await asyncio.sleep(1)
        assert len(place.broker.accesses) == accesses, "the former Secret wakes nobody"
        place.cluster.edit(SECRET, "shop", "other", {"data": data(password="wrong")})
        await asyncio.sleep(1)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("False", "LoginRefused")
        watchers = len(place.cluster.watchers)
        place.cluster.take_away(BROKER, *MAIN)
        await asyncio.sleep(SETTLED_S)
        assert len(place.cluster.watchers) == watchers - 1


class Cache:
    """A cache on a cluster, and whom it told of changes."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.told: list[Key] = []
        self.cache = SecretCache(self.cluster, ObjectCache(), changed=self.told.append)

    def give(self, password: str) -> None:
        self.cluster.put(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": ADMIN.name, "namespace": ADMIN.namespace},
                "data": data(password=password),
            }
        )

    async def password(self, broker: Key = MAIN) -> object:
        seen = await self.cache.named(broker, ADMIN.name)
        return None if seen is None else seen["data"]["password"]


@in_virtual_time
async def test_a_secret_that_was_never_seen_is_unknown_and_not_missing() -> None:
    place = Cache()
    place.cluster.failing = {"watch"}
    with pytest.raises(ClusterError, match="connection refused"):
        await place.password()
    place.give("a")
    place.cluster.failing = set()
    await asyncio.sleep(RETRY_MAX_S)
    assert place.told == [MAIN], "who was refused is told when it is there"
    assert await place.password() == data(password="a")["password"]
    await place.cache.close()


@in_virtual_time
async def test_what_was_seen_counts_while_the_api_server_is_away_and_what_changed_then_is_seen_after() -> (
    None
):
    place = Cache()
    place.give("a")
    ended = asyncio.Event()
    watch = place.cluster.watch

    async def ending(kind: Kind, namespace: str, name: str):
        async for seen in watch(kind, namespace, name):
            yield seen
            await ended.wait()
            raise ClusterError("watch Secret", "connection reset")

    place.cluster.watch = ending
    assert await place.password() == data(password="a")["password"]
    place.cluster.failing = {"watch"}
    ended.set()
    await asyncio.sleep(HOUR_S)
    assert await place.password() == data(password="a")["password"]
    place.give("b")
    place.cluster.failing, place.cluster.watch = set(), watch
    await asyncio.sleep(RETRY_MAX_S)
    assert await place.password() == data(password="b")["password"]
    assert place.told == [MAIN]
    await place.cache.close()


@in_virtual_time
async def test_labels_and_other_metadata_wake_nobody() -> None:
    place = Cache()
    place.give("a")
    await place.password()
    place.cluster.edit(SECRET, *ADMIN, {"metadata": {"labels": {"team": "shop"}}})
    await asyncio.sleep(1)
    assert place.told == []
    await place.cache.close()


@in_virtual_time
async def test_two_brokers_share_a_watch_and_it_ends_with_the_last() -> None:
    place, other = Cache(), Key("shop", "other")
    place.give("a")
    await place.password(MAIN)
    await place.password(other)
    assert len(place.cluster.watchers) == 1
    place.give("b")
    await asyncio.sleep(1)
    assert sorted(place.told) == [MAIN, other]
    await place.cache.keep(MAIN, ())
    assert len(place.cluster.watchers) == 1
    await place.cache.keep(other, ())
    assert place.cluster.watchers == []


@in_virtual_time
async def test_a_password_is_generated_only_after_the_api_server_said_that_there_is_none() -> None:
    """A watch that is late shows no Secret either."""
    async with Place() as place:
        place.apply_broker()
        place.apply_group()
        place.give_secret("orders-lbg", password="of a former life")
        asked = about_secrets(place)
        await place.start()
        await asyncio.sleep(SETTLED_S)
        assert place.broker.passwords["shop-orders"] == "of a former life"
        assert asked.count(("read", "orders-lbg")) == 1
        assert place.has(GROUP)
