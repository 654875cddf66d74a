"""Every refusal of a group, for one that is new, one that is served, and one that is deleted (ADR 102)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from lbg_core.admin.actions import DeclareQueue
from lbg_core.admin.errors import Refused
from lbg_core.admin.groups import adopt_group
from lbg_operator.errors import MetricUnknown
from lbg_operator.kube.api import ClusterError, Forbidden, Invalid
from lbg_operator.kube.kinds import BROKER, CONFIG_MAP, DEPLOYMENT, GROUP, SECRET, Kind
from lbg_operator.reconcile.object_cache import Key
from lbg_operator.runtime.operator import metric_reader
from testing.kubernetes.manifests import consumer
from testing.operator.operated import MAIN, SETTLED_S, Place
from testing.virtual_time import in_virtual_time

ALLEY = Key("alley", "orders")
"""The group of this file: in another namespace than its Broker."""
NAME = "alley-orders"
APART_S = 100.0
"""By then a refusal of the cluster was tried again, and a scale-in went on without knowing who serves what."""


def nothing(place: Place) -> None:
    """The manifest alone is refused."""


def withdraw(place: Place) -> None:
    place.cluster.edit(BROKER, *MAIN, {"spec": {"allowedNamespaces": ["elsewhere"]}})


def remove_broker(place: Place) -> None:
    if place.has(BROKER, "main"):
        place.cluster.take_away(BROKER, *MAIN)


def refuse_queues(place: Place) -> None:
    """The broker takes no queue any more, and has lost one."""
    place.broker.fail_on = lambda action: (
        Refused("no", status=403) if isinstance(action, DeclareQueue) else None
    )
    place.broker.queues.pop(f"lbg.{NAME}.q.1", None)


def stop_broker(place: Place) -> None:
    place.broker.is_down = True


def spoil_broker(place: Place) -> None:
    place.cluster.edit(BROKER, *MAIN, {"spec": {"rabbitmq": {"uris": None}}})


def remove_login(place: Place) -> None:
    place.cluster.take_away(SECRET, "shop", "main-admin")


def refuse_login(place: Place) -> None:
    place.broker.password = "another"


def reject(error: ClusterError, verb: str, kind: Kind) -> Callable[[Place], None]:
    """The API server answers `error` to a request that changes more of an object than its replicas."""

    def befall(place: Place) -> None:
        asked = {"apply": place.cluster.apply, "merge": place.cluster.merge}[verb]

        async def refused(*args: Any, **options: Any) -> Any:
            one = args[0]["kind"] if verb == "apply" else args[0].kind
            if one == kind.kind and not options.get("subresource"):
                raise error
            return await asked(*args, **options)

        setattr(place.cluster, verb, refused)

    return befall


def lose_finalizer(place: Place) -> None:
    if place.has(GROUP, *ALLEY[::-1]):
        place.cluster.edit(GROUP, *ALLEY, {"metadata": {"finalizers": None}})
    reject(Forbidden("patch it", "a policy", status=403), "merge", GROUP)(place)


@dataclass
class Row:
    """`befall`: what becomes of the surroundings; `spec`: of the manifest. `new`, `served`: conditions then.

    `stays`: in the last event, where the group stays on the broker."""

    befall: Callable[[Place], None]
    new: dict[str, tuple[str, str]]
    served: dict[str, tuple[str, str]]
    spec: dict[str, Any] = field(default_factory=dict)
    stays: str = ""


def accepted(reason: str, retained: tuple[str, str] = ("True", "Retained")) -> dict[str, Any]:
    return {
        "new": {"Accepted": ("False", reason), "Provisioned": ("False", "NotAccepted")},
        "served": {"Accepted": ("False", reason), "Provisioned": retained},
    }


def provisioned(new: tuple[str, str], served: tuple[str, str]) -> dict[str, Any]:
    return {"new": {"Provisioned": new}, "served": {"Provisioned": served}}


def unreachable() -> dict[str, Any]:
    reason = ("Unknown", "BrokerNotReady")
    return {**provisioned(reason, reason), "stays": f"what it has of {NAME} is left there"}


NOBODY = {"consumer": {"app": {"container": "nobody"}}}
SHAPELESS = {"consumer": {"template": {"spec": {"containers": "app"}}}}
ROWS = {
    "the template has another shape": Row(nothing, spec=SHAPELESS, **accepted("Invalid")),
    "the consumers cannot be rendered": Row(nothing, spec=NOBODY, **accepted("Invalid")),
    "the namespace is not allowed": Row(withdraw, **accepted("BrokerNotAllowed")),
    "the Broker is not there": Row(
        remove_broker,
        stays=f"{NAME} was not deleted there",
        **accepted("BrokerNotFound", ("Unknown", "BrokerNotReady")),
    ),
    "the broker refuses a change": Row(
        refuse_queues,
        **provisioned(("False", "ProvisioningFailed"), ("False", "ProvisioningFailed")),
    ),
    "the broker is away": Row(stop_broker, **unreachable()),
    "the Broker is invalid": Row(spoil_broker, **unreachable()),
    "the Secret of the administrator is gone": Row(remove_login, **unreachable()),
    "the login is refused": Row(refuse_login, **unreachable()),
    "the finalizer cannot be written": Row(
        lose_finalizer, **provisioned(("Unknown", "NotBegun"), ("Unknown", "NotBegun"))
    ),
    "the cluster forbids the Deployment": Row(
        reject(Forbidden("patch it", "a policy", status=403), "apply", DEPLOYMENT),
        spec={"consumer": consumer(template={"spec": {"containers": [{"name": "app", "image": "app:2"}]}})},
        new={"Degraded": ("True", "ClusterRefuses")},
        served={"Degraded": ("True", "ClusterRefuses"), "Provisioned": ("True", "Provisioned")},
    ),
    "the API server takes no such Deployment": Row(
        reject(Invalid("patch it", "a typo", status=422), "apply", DEPLOYMENT),
        spec={"consumer": consumer(template={"spec": {"containers": [{"name": "app", "image": "app:2"}]}})},
        new={"Accepted": ("False", "Invalid")},
        served={"Accepted": ("False", "Invalid"), "Provisioned": ("True", "Provisioned")},
    ),
}
every_row = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())


def apply_group(place: Place, **spec: Any) -> None:
    place.apply_group(ALLEY.name, ALLEY.namespace, brokerRef={"name": "main", "namespace": "shop"}, **spec)


async def serve(place: Place, **spec: Any) -> None:
    place.apply_broker(allowedNamespaces=[ALLEY.namespace])
    await place.start()
    apply_group(place, **spec)
    await asyncio.sleep(SETTLED_S)
    assert place.conditions(ALLEY)["Ready"] == ("True", "Served")


def replicas(place: Place) -> int:
    return int(place.seen(DEPLOYMENT, *ALLEY[::-1])["spec"]["replicas"])


def image(place: Place) -> str:
    containers = place.seen(DEPLOYMENT, *ALLEY[::-1])["spec"]["template"]["spec"]["containers"]
    return str(containers[0]["image"])


def assert_degraded_if_stalled(place: Place) -> None:
    """Degraded has the message of Stalled, or a problem of its own, in one event."""
    conditions = place.conditions(ALLEY)
    if "Stalled" in conditions:
        assert conditions["Degraded"][0] == "True"
        if conditions["Degraded"][1] == "Refused":
            assert place.message("Degraded", ALLEY) == place.message("Stalled", ALLEY)
    assert "Refused" not in place.reasons()


@every_row
@in_virtual_time
async def test_nothing_is_made_on_the_broker_for_a_new_group(row: Row) -> None:
    async with Place() as place:
        place.apply_broker(allowedNamespaces=[ALLEY.namespace])
        row.befall(place)
        await place.start()
        apply_group(place, consumer={**consumer(), **row.spec.get("consumer", {})})
        await asyncio.sleep(SETTLED_S)
        assert place.conditions(ALLEY).items() >= row.new.items()
        assert_degraded_if_stalled(place)
        is_made = "Degraded" in row.new or row.new.get("Accepted") == ("False", "Invalid")
        assert place.broker.holds_nothing() or (is_made and "Provisioned" not in row.new)
        assert not place.pods.of(*ALLEY[::-1])


@every_row
@in_virtual_time
async def test_a_group_that_is_served_keeps_its_consumers_and_is_scaled(row: Row) -> None:
    async with Place() as place:
        await serve(place)
        row.befall(place)
        place.edit_group(row.spec, ALLEY)
        await asyncio.sleep(60)
        assert place.conditions(ALLEY).items() >= row.served.items()
        assert_degraded_if_stalled(place)
        assert (len(place.pods.of(*ALLEY[::-1])), image(place)) == (2, "example.org/app:1")
        for count in (4, 0, 3):
            place.edit_group({"replicas": count}, ALLEY)
            await asyncio.sleep(APART_S)
            assert (replicas(place), len(place.pods.of(*ALLEY[::-1]))) == (count, count)
        assert place.conditions(ALLEY).items() >= row.served.items()
        assert image(place) == "example.org/app:1"


@every_row
@in_virtual_time
async def test_what_a_served_group_owns_is_deleted_with_it_or_the_last_event_has_the_commands(
    row: Row,
) -> None:
    async with Place() as place:
        await serve(place, drainTimeoutSeconds=30)
        row.befall(place)
        place.edit_group(row.spec, ALLEY)
        await asyncio.sleep(60)
        place.cluster.fail = lambda verb, kind, name: None
        for verb in ("apply", "merge"):
            vars(place.cluster).pop(verb, None)
        await asyncio.sleep(1)
        place.cluster.take_away(GROUP, *ALLEY)
        await asyncio.sleep(100)
        assert not place.has(GROUP, *ALLEY[::-1])
        assert not place.pods.of(*ALLEY[::-1])
        if not row.stays:
            assert place.broker.holds_nothing()
        else:
            assert row.stays in place.last_words()
            assert f"`lbg group adopt {NAME}` and `lbg group delete {NAME}` remove it" in place.last_words()


@in_virtual_time
async def test_a_group_whose_permission_is_withdrawn_says_what_goes_on_and_how_it_ends() -> None:
    async with Place() as place:
        await serve(place)
        performed = len(place.broker.performed)
        withdraw(place)
        place.broker.waiting[f"lbg.{NAME}.q.0"] = 7
        await asyncio.sleep(60)
        assert place.message("Accepted", ALLEY) == (
            "Broker shop/main does not list alley in its allowedNamespaces. The group stays on the broker and its "
            "consumers are scaled as before; nothing is created or changed there while Accepted is False. Deleting "
            "this object deletes the group there too (deletionPolicy)."
        )
        assert place.conditions(ALLEY)["Ready"] == ("True", "Served")
        assert place.status(ALLEY)["lag"] == 7
        (warning,) = (one for one in place.events if one.type == "Warning")
        assert "Deleting this object deletes the group there too" in warning.message
        other = {"spec": {"containers": [{"name": "app", "image": "example.org/app:2"}]}}
        place.edit_group({"consumer": consumer(template=other)}, ALLEY)
        await asyncio.sleep(SETTLED_S)
        assert image(place) == "example.org/app:2", "its own objects in the cluster follow the manifest"
        assert len(place.broker.performed) == performed
        place.broker.queues.pop(f"lbg.{NAME}.q.1")
        await asyncio.sleep(40)
        assert len(place.broker.performed) == performed, "nothing is repaired on the broker either"
        assert place.conditions(ALLEY)["Degraded"][0] == "True"


@in_virtual_time
async def test_a_group_whose_permission_is_withdrawn_is_known_after_a_restart() -> None:
    async with Place() as place:
        await serve(place)
        withdraw(place)
        await asyncio.sleep(SETTLED_S)
        before, events = place.conditions(ALLEY), len(place.events)
        await place.restart()
        await asyncio.sleep(60)
        assert place.conditions(ALLEY) == before
        assert place.events[events:] == []


@in_virtual_time
async def test_a_group_that_is_made_again_after_a_withdrawal_is_its_objects_own() -> None:
    async with Place() as place:
        await serve(place)
        withdraw(place)
        await asyncio.sleep(SETTLED_S)
        place.cluster.take_away(GROUP, *ALLEY)
        await asyncio.sleep(SETTLED_S)
        assert "are deleted on the broker" in place.last_words()
        place.cluster.edit(BROKER, *MAIN, {"spec": {"allowedNamespaces": [ALLEY.namespace]}})
        apply_group(place)
        await asyncio.sleep(SETTLED_S)
        assert place.conditions(ALLEY)["Ready"] == ("True", "Served")


@in_virtual_time
async def test_a_group_that_is_allowed_again_has_its_name_although_another_object_was_accepted_meanwhile() -> (
    None
):
    async with Place() as place:
        await serve(place)
        withdraw(place)
        await asyncio.sleep(SETTLED_S)
        place.apply_group(groupName=NAME)
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Provisioned"] == ("False", "NotOwned")
        place.cluster.edit(BROKER, *MAIN, {"spec": {"allowedNamespaces": [ALLEY.namespace]}})
        await asyncio.sleep(SETTLED_S)
        assert place.conditions(ALLEY)["Provisioned"] == ("True", "Provisioned")
        assert place.conditions()["Accepted"] == ("False", "NameTaken")


@in_virtual_time
async def test_a_namespace_that_was_never_allowed_learns_and_deletes_nothing_by_objects_that_anybody_can_make() -> (
    None
):
    async with Place() as place:
        await place.ready()
        queues = dict(place.broker.queues)
        apply_group(place, groupName="shop-orders")
        uid = place.seen(GROUP, *ALLEY[::-1])["metadata"]["uid"]
        owner = {"apiVersion": GROUP.api_version, "kind": GROUP.kind, "name": "orders", "uid": uid}
        labels = {"lbg.dev/group": "orders", "app.kubernetes.io/managed-by": "lbg-operator"}
        for kind, made in (("ConfigMap", CONFIG_MAP), ("Secret", SECRET)):
            metadata = {
                "name": "orders-lbg",
                "namespace": "alley",
                "labels": labels,
                "ownerReferences": [owner],
            }
            place.cluster.put(
                {"apiVersion": made.api_version, "kind": kind, "metadata": metadata, "data": {}}
            )
        await asyncio.sleep(60)
        assert place.conditions(ALLEY)["Accepted"] == ("False", "BrokerNotAllowed")
        assert place.conditions(ALLEY)["Provisioned"] == ("False", "NotAccepted")
        assert not {"queues", "members", "lag"} & place.status(ALLEY).keys()
        place.cluster.take_away(GROUP, *ALLEY)
        await asyncio.sleep(60)
        assert not place.has(GROUP, *ALLEY[::-1])
        assert place.broker.queues.keys() == queues.keys()


@in_virtual_time
async def test_a_group_that_was_given_to_another_owner_is_scaled_and_not_changed() -> None:
    async with Place() as place:
        await serve(place)
        await adopt_group(place.broker, NAME)
        await asyncio.sleep(700)
        assert place.conditions(ALLEY)["Provisioned"] == ("False", "NotOwned")
        performed = len(place.broker.performed)
        for count in (0, 3):
            place.edit_group({"replicas": count}, ALLEY)
            await asyncio.sleep(APART_S)
            assert replicas(place) == count
        assert len(place.broker.performed) == performed


@in_virtual_time
async def test_a_group_of_another_size_than_its_manifest_is_scaled_and_deleted_as_it_was_made() -> None:
    async with Place() as place:
        await serve(place)
        place.edit_group({"queues": {"size": "2G"}, "replicas": 1}, ALLEY)
        await asyncio.sleep(APART_S)
        assert place.conditions(ALLEY)["Provisioned"] == ("False", "GroupDiffers")
        assert replicas(place) == 1
        place.cluster.take_away(GROUP, *ALLEY)
        await asyncio.sleep(SETTLED_S)
        assert place.broker.holds_nothing()


@in_virtual_time
async def test_consumers_that_may_not_park_are_scaled() -> None:
    async with Place() as place:
        place.apply_broker(allowedNamespaces=[ALLEY.namespace])
        await place.start()
        apply_group(place, consumer=consumer(whenExhausted="Park", order="Key"))
        await asyncio.sleep(SETTLED_S)
        place.edit_group({"consumer": consumer(order="Queue")}, ALLEY)
        await asyncio.sleep(SETTLED_S)
        assert place.conditions(ALLEY)["Accepted"] == ("False", "Invalid")
        place.edit_group({"replicas": 0}, ALLEY)
        await asyncio.sleep(APART_S)
        assert replicas(place) == 0


@in_virtual_time
async def test_autoscalers_read_the_lag_of_a_served_group_whose_manifest_is_refused() -> None:
    async with Place() as place:
        await serve(place)
        place.broker.waiting[f"lbg.{NAME}.q.0"] = 7
        for refuse in (withdraw, lambda one: one.edit_group(SHAPELESS, ALLEY)):
            refuse(place)
            await asyncio.sleep(SETTLED_S)
            assert place.operator is not None
            assert await metric_reader(place.operator.world)("lbg_group_lag", *ALLEY) == 7


@in_virtual_time
async def test_autoscalers_read_nothing_of_a_new_group_whose_manifest_is_refused() -> None:
    async with Place() as place:
        place.apply_broker()
        await place.start()
        apply_group(place)
        await asyncio.sleep(SETTLED_S)
        assert place.operator is not None
        with pytest.raises(MetricUnknown, match="no group of its own"):
            await metric_reader(place.operator.world)("lbg_group_lag", *ALLEY)
