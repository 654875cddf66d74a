"""Refusals of the API server are reported in its words; only an applied generation is Ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lbg_operator.kube.api import ClusterError, Forbidden, Invalid, Terminating
from lbg_operator.kube.kinds import (
    AUTOSCALER,
    BROKER,
    BUDGET,
    CONFIG_MAP,
    DEPLOYMENT,
    GROUP,
    NETWORK_POLICY,
    POD,
    SCALED_OBJECT,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    TRIGGER_AUTHENTICATION,
    VOLUME_CLAIM,
    Kind,
)
from lbg_operator.reconcile.object_cache import Key
from testing.kubernetes.manifests import broker_manifest, consumer
from testing.operator.operated import MAIN, ORDERS, SETTLED_S, Place, Told
from testing.operator.operated_sessions import sessions_place
from testing.virtual_time import in_virtual_time

SOON_S = 5.0
MENDED_S = 70.0
"""By then what was refused is tried again."""
WORDS = "as the API server words it"
FAULTS = {
    "unknown field": Invalid("patch it", WORDS, status=500),
    "invalid": Invalid("patch it", WORDS, status=422),
    "quota": Forbidden("patch it", WORDS, status=403),
    "conflict": ClusterError("patch it", WORDS, status=409),
    "webhook away": ClusterError("patch it", WORDS, status=500),
    "throttled": ClusterError("patch it", WORDS, status=429),
    "no answer": ClusterError("patch it", WORDS),
}
SCALING = {"maxReplicas": 4, "targetLag": 100}
OTHER = {"spec": {"containers": [{"name": "app", "image": "example.org/app:2"}]}}
every_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())


def every_fault_and_kind(*kinds: Kind) -> pytest.MarkDecorator:
    """Each fault with the first kind, and the first fault with each; the other pairs are slow repetitions."""
    return pytest.mark.parametrize(
        ("kind", "fault"),
        [
            pytest.param(kind, fault, id=f"{kind.kind}-{name}", marks=[pytest.mark.slow] if n and m else [])
            for n, kind in enumerate(kinds)
            for m, (name, fault) in enumerate(FAULTS.items())
        ],
    )


def failing(error: ClusterError, *kinds: Kind) -> Callable[[str, Kind, str], None]:
    def fail(verb: str, kind: Kind, name: str) -> None:
        if verb == "apply" and kind in kinds:
            raise error

    return fail


def well(verb: str, kind: Kind, name: str) -> None:
    """Nothing fails."""


def told(place: Place, key: Key = ORDERS, kind: Kind = GROUP) -> list[str]:
    """The types of the conditions that have the API server's words."""
    return [one["type"] for one in place.status(key, kind).get("conditions", ()) if WORDS in one["message"]]


def warnings(place: Place, about: str = "orders") -> list[Told]:
    return [
        one for one in place.events if (one.about, one.type) == (about, "Warning") and WORDS in one.message
    ]


def is_of_its_generation(place: Place, key: Key = ORDERS, kind: Kind = GROUP) -> bool:
    generation = place.seen(kind, key.name, key.namespace)["metadata"]["generation"]
    status = place.status(key, kind)
    return (
        {status["observedGeneration"]}
        == {one["observedGeneration"] for one in status["conditions"]}
        == {generation}
    )


def shown(place: Place, key: Key = ORDERS, kind: Kind = GROUP) -> None:
    """As whoever looks at the object within five seconds sees it."""
    assert {"Accepted", "Degraded"} & set(told(place, key, kind))
    assert "Ready" in told(place, key, kind)
    assert place.conditions(key, kind)["Ready"] == ("Unknown", "NotApplied")
    assert is_of_its_generation(place, key, kind)
    assert warnings(place, key.name)


async def begun(place: Place) -> None:
    place.apply_broker()
    await place.start()
    await asyncio.sleep(SETTLED_S)


@every_fault_and_kind(CONFIG_MAP, NETWORK_POLICY, BUDGET, DEPLOYMENT, AUTOSCALER, SECRET)
@in_virtual_time
async def test_an_object_of_a_new_group_that_is_not_applied_is_told(kind: Kind, fault: ClusterError) -> None:
    async with Place() as place:
        await begun(place)
        place.cluster.fail = failing(fault, kind)
        place.apply_group(scaling=SCALING)
        await asyncio.sleep(SOON_S)
        shown(place)
        assert (place.conditions()["Provisioned"] == ("Unknown", "NotBegun")) == (kind is SECRET)
        place.cluster.fail = well
        await asyncio.sleep(MENDED_S)
        assert place.conditions()["Ready"] == ("True", "Served")
        assert told(place) == []


@every_fault
@in_virtual_time
async def test_an_edit_that_is_not_applied_is_told_and_what_runs_goes_on(fault: ClusterError) -> None:
    async with Place() as place:
        await place.ready()
        running = place.running()
        place.cluster.fail = failing(fault, DEPLOYMENT)
        place.edit_group({"consumer": consumer(template=OTHER)})
        await asyncio.sleep(SOON_S)
        shown(place)
        assert place.conditions()["Provisioned"] == ("True", "Provisioned")
        await asyncio.sleep(SETTLED_S)
        assert place.running() == running
        place.cluster.fail = well
        await asyncio.sleep(MENDED_S)
        assert place.conditions()["Ready"] == ("True", "Served")
        assert told(place) == []


@every_fault_and_kind(SCALED_OBJECT, TRIGGER_AUTHENTICATION)
@in_virtual_time
async def test_an_object_of_keda_s_that_is_not_applied_is_told(kind: Kind, fault: ClusterError) -> None:
    async with Place() as place:
        place.cluster.served.add("keda.sh/v1alpha1")
        await begun(place)
        place.cluster.fail = failing(fault, kind)
        place.apply_group(scaling=SCALING)
        await asyncio.sleep(SOON_S)
        shown(place)


@every_fault
@in_virtual_time
async def test_a_stateful_set_that_is_not_applied_is_told(fault: ClusterError) -> None:
    place, _ = sessions_place()
    async with place:
        await begun(place)
        place.cluster.fail = failing(fault, STATEFUL_SET)
        place.apply_group(mode="Sessions", queues={"count": 1})
        await asyncio.sleep(SOON_S)
        shown(place)
        place.cluster.fail = well
        await asyncio.sleep(MENDED_S)
        assert told(place) == []
        assert place.has(STATEFUL_SET, "orders-lbg")


@every_fault
@in_virtual_time
async def test_a_session_s_pod_that_cannot_be_marked_is_told(fault: ClusterError) -> None:
    place, _ = sessions_place()
    async with place:
        await begun(place)
        place.apply_group(mode="Sessions", queues={"count": 1})
        await asyncio.sleep(SETTLED_S)

        def fail(verb: str, kind: Kind, name: str) -> None:
            if kind is POD:
                raise fault

        place.cluster.fail = fail
        place.edit_group({"replicas": 1})
        await asyncio.sleep(SOON_S + 2)  # it is looked first at what the sessions have
        shown(place)


@every_fault
@in_virtual_time
async def test_a_finalizer_that_cannot_be_written_is_told_and_nothing_is_made(fault: ClusterError) -> None:
    async with Place() as place:
        await begun(place)
        merge = place.cluster.merge

        async def refused(kind: Kind, *args: Any, subresource: str = "") -> Any:
            if kind is GROUP and not subresource:
                raise fault
            return await merge(kind, *args, subresource=subresource)

        place.cluster.merge = refused
        place.apply_group()
        await asyncio.sleep(SOON_S)
        shown(place)
        assert place.conditions()["Provisioned"] == ("Unknown", "NotBegun")
        assert place.broker.holds_nothing()
        place.cluster.merge = merge
        await asyncio.sleep(MENDED_S)
        assert place.conditions()["Ready"] == ("True", "Served")


@pytest.mark.long
@every_fault_and_kind(SECRET, SERVICE, NETWORK_POLICY, STATEFUL_SET, VOLUME_CLAIM)
@in_virtual_time
async def test_an_object_of_a_broker_that_is_not_applied_is_told(kind: Kind, fault: ClusterError) -> None:
    async with Place() as place:
        place.broker.password = None
        await place.start()
        place.cluster.fail = failing(fault, kind)
        place.cluster.put(broker_manifest({"embedded": {}}))
        await asyncio.sleep(SOON_S)
        shown(place, MAIN, BROKER)
        place.cluster.fail = well
        await asyncio.sleep(MENDED_S)
        assert place.conditions(MAIN, BROKER)["Ready"] == ("True", "Reachable")
        assert told(place, MAIN, BROKER) == []


@every_fault
@in_virtual_time
async def test_an_edit_of_a_broker_that_is_not_applied_is_told_and_its_groups_go_on(
    fault: ClusterError,
) -> None:
    async with Place() as place:
        place.broker.password = None
        place.cluster.put(broker_manifest({"embedded": {}}))
        await place.start()
        place.apply_group()
        await asyncio.sleep(SETTLED_S)
        place.cluster.fail = failing(fault, STATEFUL_SET)
        place.cluster.edit(BROKER, *MAIN, {"spec": {"embedded": {"resources": {"limit": {}}}}})
        await asyncio.sleep(SOON_S)
        shown(place, MAIN, BROKER)
        await asyncio.sleep(60)
        assert place.conditions()["Ready"] == ("True", "Served")


@in_virtual_time
async def test_a_webhook_that_denies_statuses_holds_up_nothing_else() -> None:
    denied = Forbidden("patch it", 'admission webhook "p.example.org" denied the request: frozen', status=403)

    def fail(verb: str, kind: Kind, name: str) -> None:
        if (verb, kind) == ("merge", GROUP):
            raise denied

    async with Place() as place:
        await place.ready()
        place.cluster.fail = fail
        place.edit_group({"replicas": 4})
        await asyncio.sleep(SETTLED_S)
        assert place.seen(DEPLOYMENT)["spec"]["replicas"] == 4
        assert place.status()["observedGeneration"] == 1
        place.cluster.fail = well
        await asyncio.sleep(MENDED_S)
        assert place.status()["observedGeneration"] == 2
        assert place.conditions()["Ready"] == ("True", "Served")


@in_virtual_time
async def test_one_object_that_is_refused_holds_up_no_other() -> None:
    async with Place() as place:
        await begun(place)
        place.cluster.fail = failing(FAULTS["quota"], CONFIG_MAP)
        place.apply_group()
        await asyncio.sleep(SOON_S)
        assert place.has(DEPLOYMENT)
        assert place.has(NETWORK_POLICY)


@in_virtual_time
async def test_each_object_that_is_refused_is_told() -> None:
    async with Place() as place:
        await begun(place)

        def fail(verb: str, kind: Kind, name: str) -> None:
            if (verb, kind) == ("apply", DEPLOYMENT):
                raise Invalid("patch the Deployment", "no such field", status=500)
            if (verb, kind) == ("apply", CONFIG_MAP):
                raise Forbidden("patch the ConfigMap", "exceeded quota", status=403)

        place.cluster.fail = fail
        place.apply_group()
        await asyncio.sleep(SOON_S)
        assert place.message("Accepted") == "patch the Deployment: no such field"
        assert place.message("Degraded") == "patch the ConfigMap: exceeded quota"
        assert "no such field" in place.message("Ready")
        assert "exceeded quota" in place.message("Ready")


@in_virtual_time
async def test_a_fault_that_passes_at_once_is_nobody_s_concern() -> None:
    async with Place() as place:
        await place.ready()
        events, left = len(place.events), [FAULTS["conflict"]]

        def fail(verb: str, kind: Kind, name: str) -> None:
            if (verb, kind) == ("apply", DEPLOYMENT) and left:
                raise left.pop()

        place.cluster.fail = fail
        place.edit_group({"consumer": consumer(template=OTHER)})
        await asyncio.sleep(SOON_S)
        assert left == []
        assert place.conditions()["Ready"] == ("True", "Served")
        assert is_of_its_generation(place)
        assert place.events[events:] == []


@in_virtual_time
async def test_a_fault_makes_nothing_unready_that_was_applied() -> None:
    async with Place() as place:
        await place.ready()
        place.cluster.fail = failing(FAULTS["no answer"], BUDGET)
        place.cluster.take_away(BUDGET, "shop", "orders")
        await asyncio.sleep(SOON_S)
        assert place.conditions()["Ready"] == ("True", "Served")
        assert place.conditions()["Degraded"] == ("True", "ApplyFails")
        await place.restart()
        await asyncio.sleep(40)
        assert place.conditions()["Ready"] == ("True", "Served")
        assert place.conditions()["Degraded"] == ("True", "ApplyFails")


@in_virtual_time
async def test_what_a_namespace_takes_no_more_while_it_is_deleted_is_nobody_s_concern() -> None:
    async with Place() as place:
        await place.ready()
        events = len(place.events)
        place.cluster.fail = failing(Terminating("patch it", WORDS, status=403), DEPLOYMENT, CONFIG_MAP)
        place.cluster.take_away(CONFIG_MAP, "shop", "orders-lbg")
        place.cluster.take_away(DEPLOYMENT, "shop", "orders")
        await asyncio.sleep(SETTLED_S)
        assert told(place) == []
        assert [one for one in place.events[events:] if WORDS in one.message] == []


@in_virtual_time
async def test_a_generation_that_was_never_applied_is_not_ready_after_a_restart_either() -> None:
    async with Place() as place:
        await place.ready()
        place.cluster.fail = failing(FAULTS["unknown field"], DEPLOYMENT)
        place.edit_group({"consumer": consumer(template=OTHER)})
        await asyncio.sleep(SOON_S)
        await place.restart()
        await asyncio.sleep(120)
        shown(place)


@in_virtual_time
async def test_a_mistake_is_tried_again_once_a_minute_and_a_fault_more_often() -> None:
    async with Place() as place:
        await place.ready()
        tries: list[str] = []
        error = FAULTS["unknown field"]

        def fail(verb: str, kind: Kind, name: str) -> None:
            if (verb, kind) == ("apply", DEPLOYMENT):
                tries.append(name)
                raise error

        place.cluster.fail = fail
        place.edit_group({"consumer": consumer(template=OTHER)})
        await asyncio.sleep(600)
        mistakes = len(tries)
        assert mistakes <= 35, "at each look, and else once a minute"
        statuses = place.cluster.changed.count(("merge", "LoadBalancedGroup", "orders"))
        await asyncio.sleep(600)
        assert place.cluster.changed.count(("merge", "LoadBalancedGroup", "orders")) - statuses <= 3


@in_virtual_time
async def test_another_mistake_in_the_next_generation_is_an_event_of_its_own() -> None:
    async with Place() as place:
        await place.ready()
        for number in (1, 2):
            place.cluster.fail = failing(Invalid("patch it", f"{WORDS} {number}", status=500), DEPLOYMENT)
            image = f"example.org/app:{number + 1}"
            place.edit_group(
                {"consumer": consumer(template={"spec": {"containers": [{"name": "a", "image": image}]}})}
            )
            await asyncio.sleep(60)
        assert [one.message[-1] for one in warnings(place) if one.reason == "Invalid"] == ["1", "2"]


@in_virtual_time
async def test_a_round_says_nothing_of_a_generation_that_came_during_it() -> None:
    async with Place() as place:
        await place.ready()
        apply, merges = place.cluster.apply, []
        merge = place.cluster.merge

        async def slow(wanted: Any) -> Any:
            if wanted["kind"] == "Deployment":
                await asyncio.sleep(2)
            return await apply(wanted)

        async def noted(
            kind: Kind, namespace: str | None, name: str, patch: Any, *, subresource: str = ""
        ) -> Any:
            if subresource == "status" and kind is GROUP:
                merges.append((patch["status"]["observedGeneration"], image_of(place)))
            return await merge(kind, namespace, name, patch, subresource=subresource)

        place.cluster.apply, place.cluster.merge = slow, noted
        place.edit_group({"consumer": consumer(template=OTHER)})
        await asyncio.sleep(1)
        third = {"spec": {"containers": [{"name": "app", "image": "example.org/app:3"}]}}
        place.edit_group({"consumer": consumer(template=third)})
        await asyncio.sleep(SETTLED_S)
        assert merges[:2] == [(2, "example.org/app:2"), (3, "example.org/app:3")]


def image_of(place: Place) -> str:
    containers = place.seen(DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
    return str(containers[0]["image"])


@in_virtual_time
async def test_another_size_of_queues_than_the_broker_has_is_not_ready() -> None:
    async with Place() as place:
        await place.ready()
        place.edit_group({"queues": {"size": "2G"}})
        await asyncio.sleep(40)
        assert place.conditions()["Provisioned"] == ("False", "GroupDiffers")
        assert place.conditions()["Ready"] == ("Unknown", "NotApplied")
        assert is_of_its_generation(place)
