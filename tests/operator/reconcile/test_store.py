"""Cache of the cluster's objects, and the objects that were applied last."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lbg_operator.kube.api import ClusterError
from lbg_operator.kube.kinds import CONFIG_MAP, DEPLOYMENT, GROUP, NETWORK_POLICY, POD, SCALED_OBJECT, Kind
from lbg_operator.reconcile.ending_namespaces import EndingNamespaces
from lbg_operator.reconcile.object_cache import Key, ObjectCache, gone, version_of
from lbg_operator.reconcile.server_side_apply import REPEAT_AFTER_S, ServerSideApply
from lbg_operator.resources.names import GROUP_LABEL
from testing.kubernetes.fake_cluster import FakeCluster
from testing.kubernetes.manifests import group_manifest

ORDERS = Key("shop", "orders")


def thing(kind: str = "Deployment", version: int = 1, **more: Any) -> dict[str, Any]:
    api_version = {
        "Deployment": "apps/v1",
        "ConfigMap": "v1",
        "Pod": "v1",
        "ScaledObject": "keda.sh/v1alpha1",
    }
    metadata = {
        "namespace": "shop",
        "name": "orders",
        "resourceVersion": str(version),
        **more.pop("metadata", {}),
    }
    return {
        "apiVersion": api_version.get(kind, "lbg.dev/v1alpha1"),
        "kind": kind,
        "metadata": metadata,
        **more,
    }


# The store


def test_of_groups_all_is_kept_and_of_others_what_is_asked_for() -> None:
    store = ObjectCache()
    group = thing("LoadBalancedGroup", spec={"a": 1})
    store.put(GROUP, group)
    assert store.get(GROUP, ORDERS) == group
    store.put(DEPLOYMENT, thing(spec={"replicas": 3, "template": {"large": 1}}, status={"x": 1}))
    kept = store.get(DEPLOYMENT, ORDERS)
    assert kept is not None
    assert (kept["replicas"], kept["status"]) == (3, {"x": 1})
    assert "spec" not in kept


def test_what_stays_the_same_is_one_object_and_words_that_all_have_are_one_string() -> None:
    """Each answer and each event is JSON of its own, and hundreds of groups are mostly the same words."""
    store = ObjectCache()

    def told(version: int, name: str, **spec: Any) -> dict[str, Any]:
        said = {"conditions": [{"type": "Ready", "message": "every queue", "long": 100 * "long"}]}
        metadata = {"name": name}
        one = thing(
            "LoadBalancedGroup", version, metadata=metadata, spec={"order": "key", **spec}, status=said
        )
        read: dict[str, Any] = json.loads(json.dumps(one))
        return read

    def kept(name: str) -> Any:
        return store.get(GROUP, Key("shop", name))

    store.put(GROUP, told(1, "orders"))
    store.put(GROUP, told(1, "payments"))
    first = kept("orders")
    store.put(GROUP, told(2, "orders", replicas=2))
    assert kept("orders")["metadata"]["resourceVersion"] == "2"
    assert kept("orders")["spec"] == {"order": "key", "replicas": 2}
    assert kept("orders")["status"] is first["status"]
    one, other = (kept(name)["status"]["conditions"][0] for name in ("orders", "payments"))
    assert one == other
    assert one["message"] is other["message"]


def test_what_is_older_than_what_is_known_is_passed_over() -> None:
    store = ObjectCache()
    store.put(DEPLOYMENT, thing(version=10, spec={"replicas": 2}))
    store.put(DEPLOYMENT, thing(version=9, spec={"replicas": 5}))
    store.drop(DEPLOYMENT, thing(version=8))
    kept = store.get(DEPLOYMENT, ORDERS)
    assert kept is not None
    assert kept["replicas"] == 2
    store.drop(DEPLOYMENT, thing(version=11))
    assert store.get(DEPLOYMENT, ORDERS) is None


def aged(version: int, generation: int, uid: str = "uid") -> dict[str, Any]:
    group = thing("LoadBalancedGroup", version)
    return {**group, "metadata": {**group["metadata"], "generation": generation, "uid": uid}}


@pytest.mark.parametrize("kind", [GROUP, DEPLOYMENT])
async def test_an_object_that_goes_backwards_shows_that_the_cluster_was_set_back(kind: Kind) -> None:
    evidence: list[str] = []

    def store() -> ObjectCache:
        evidence.clear()
        store = ObjectCache(evidence.append)
        store.put(kind, aged(10, 2))
        return store

    store().put(kind, aged(9, 1))
    assert evidence == [], "a watch reports later than an answer"
    store().put(kind, aged(11, 2))
    store().put(kind, aged(11, 1, uid="another"))
    assert evidence == []
    store().put(kind, aged(11, 1))
    assert evidence == [
        f"{kind.kind} shop/orders is at version 11, generation 1 after version 10, generation 2"
    ]

    class Listing(FakeCluster):
        async def select(self, *_: object) -> list[dict[str, Any]]:
            return [listed]

    for listed, is_back in (
        (aged(9, 1), True),
        (aged(9, 2), True),
        (aged(11, 1), True),
        (aged(10, 2), False),
        (aged(11, 3), False),
        (aged(9, 1, uid="another"), False),
    ):
        assert await gone(Listing(), store(), kind, "", ()) == []
        assert bool(evidence) is is_back, listed


def test_versions_are_numbers_and_no_texts() -> None:
    store = ObjectCache()
    store.put(DEPLOYMENT, thing(version=9, spec={"replicas": 2}))
    store.put(DEPLOYMENT, thing(version=10, spec={"replicas": 5}))
    kept = store.get(DEPLOYMENT, ORDERS)
    assert kept is not None
    assert kept["replicas"] == 5


def test_an_answer_does_not_bring_back_what_the_watch_said_is_gone() -> None:
    store = ObjectCache()
    store.update(GROUP, thing("LoadBalancedGroup", 5))
    assert store.get(GROUP, ORDERS) is None
    store.put(GROUP, thing("LoadBalancedGroup", 5))
    store.update(GROUP, thing("LoadBalancedGroup", 6))
    kept = store.get(GROUP, ORDERS)
    assert kept is not None
    assert kept["metadata"]["resourceVersion"] == "6"


def test_pods_belong_to_the_group_that_their_label_names() -> None:
    store = ObjectCache()
    mine = thing("Pod", metadata={"name": "p", "labels": {GROUP_LABEL: "orders"}})
    store.put(POD, mine)
    store.put(POD, thing("Pod", metadata={"name": "q", "labels": {}}))
    assert list(store.pods(ORDERS)) == ["p"]
    assert [key for key, _ in store.all(POD)] == [Key("shop", "p")]
    store.drop(POD, mine)
    assert not store.pods(ORDERS)
    assert list(store.all(POD)) == []


def test_a_status_that_changes_is_no_new_version_of_what_an_object_should_be() -> None:
    before = thing("ConfigMap", 1, data={"a": "1"})
    assert version_of(before) == version_of(thing("ConfigMap", 2, data={"a": "1"}, status={"x": 1}))
    assert version_of(before) != version_of(thing("ConfigMap", 2, data={"a": "2"}))
    told = {"generation": 4}
    assert version_of(thing(metadata=told, spec={"a": 1})) == version_of(thing(metadata=told, spec={"a": 2}))


# What was applied


class Place:
    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.store = ObjectCache()
        self.applied = ServerSideApply(self.cluster, self.store, EndingNamespaces(self.store))
        self.cluster.watchers.append(
            lambda kind, seen, is_gone: (self.store.drop if is_gone else self.store.put)(kind, seen)
        )

    async def apply(self, wanted: dict[str, Any], now: float = 0.0) -> bool:
        return await self.applied.apply(ORDERS, wanted, now=now)


def config(**data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": "shop", "name": "c"},
        "data": data,
    }


async def test_the_same_is_applied_once() -> None:
    place = Place()
    assert await place.apply(config(a="1"))
    assert not await place.apply(config(a="1"), now=REPEAT_AFTER_S - 1)


@pytest.mark.parametrize("patch", [{"data": {"a": "2"}}, {"data": {"a": None}}])
async def test_it_is_applied_again_when_somebody_changed_it(patch: dict[str, Any]) -> None:
    place = Place()
    await place.apply(config(a="1"))
    place.cluster.edit(CONFIG_MAP, "shop", "c", patch)
    assert await place.apply(config(a="1"))
    assert place.cluster.objects[CONFIG_MAP, "shop", "c"]["data"] == {"a": "1"}
    assert not await place.apply(config(a="1"))


async def test_it_is_applied_again_when_it_is_gone_or_wanted_otherwise_or_long_ago() -> None:
    place = Place()
    await place.apply(config(a="1"))
    place.cluster.take_away(CONFIG_MAP, "shop", "c")
    assert await place.apply(config(a="1"))
    assert await place.apply(config(b="2"))
    assert place.cluster.objects[CONFIG_MAP, "shop", "c"]["data"] == {"b": "2"}, (
        "what is not wanted any more goes"
    )
    assert await place.apply(config(b="2"), now=REPEAT_AFTER_S)


async def test_what_failed_is_applied_again() -> None:
    place = Place()
    place.cluster.failing = {"apply"}
    with pytest.raises(ClusterError):
        await place.apply(config(a="1"))
    place.cluster.failing = set()
    assert await place.apply(config(a="1"))


async def test_what_was_never_there_is_not_deleted() -> None:
    place = Place()
    asked: list[str] = []
    place.cluster.fail = lambda verb, kind, name: asked.append(f"{verb} {kind.kind}")
    await place.applied.remove(ORDERS, NETWORK_POLICY, "orders")
    await place.applied.remove(ORDERS, SCALED_OBJECT, "orders")
    assert asked == []


async def test_what_a_former_operator_left_is_deleted() -> None:
    place = Place()
    place.cluster.put(thing("ScaledObject"))
    await place.applied.remove(ORDERS, SCALED_OBJECT, "orders")
    assert (SCALED_OBJECT, "shop", "orders") not in place.cluster.objects


async def test_what_could_not_be_deleted_is_deleted_later() -> None:
    place = Place()
    scaled = thing("ScaledObject")
    await place.apply(scaled)
    place.cluster.failing = {"delete"}
    with pytest.raises(ClusterError):
        await place.applied.remove(ORDERS, SCALED_OBJECT, "orders")
    place.cluster.failing = set()
    await place.applied.remove(ORDERS, SCALED_OBJECT, "orders")
    assert (SCALED_OBJECT, "shop", "orders") not in place.cluster.objects


async def test_what_is_forgotten_is_applied_as_if_for_the_first_time() -> None:
    place = Place()
    await place.apply(config(a="1"))
    place.applied.forget(ORDERS)
    assert await place.apply(config(a="1"))


def test_who_owns_which_field_of_a_group_is_not_remembered() -> None:
    store, manifest = ObjectCache(), group_manifest()
    manifest["metadata"]["managedFields"] = [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]
    store.put(GROUP, manifest)
    (kept,) = (seen for _, seen in store.all(GROUP))
    wanted = {name: value for name, value in manifest["metadata"].items() if name != "managedFields"}
    assert kept == {**manifest, "metadata": wanted}
    assert "managedFields" in manifest["metadata"], "what the watch gave is not changed"
