"""A broker that the operator cannot use, on a cluster: a new operator replaces no consumer for that, manifests are
followed, and what was never on a broker waits for none."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from e2e import stage
from e2e.conftest import RELEASE, SYSTEM
from e2e.kubectl import Kubectl, Object, until
from e2e.test_life import begun, is_served

PODS = "lbg.dev/group"
ADMINISTRATOR = "main-lbg-admin"
AT_ONCE_S = 20


def workloads(shop: Kubectl) -> dict[str, Any]:
    """The uids of the consumers' pods, and what their controllers have made of templates so far."""
    return {
        "pods": {one["metadata"]["uid"] for one in shop.select("pod", PODS)},
        "replica sets": {one["metadata"]["uid"] for one in shop.select("replicaset", PODS)},
        "revisions": {one["metadata"]["uid"] for one in shop.select("controllerrevision", PODS)},
        "generations": {
            kind: [one["metadata"]["generation"] for one in shop.select(kind, PODS)]
            for kind in ("deployment", "statefulset")
        },
    }


def restarts(shop: Kubectl) -> int:
    return sum(
        container["restartCount"]
        for pod in shop.select("pod", PODS)
        for many in ("containerStatuses", "initContainerStatuses")
        for container in pod["status"].get(many, ())
    )


def reason(shop: Kubectl, kind: str, name: str, type_: str) -> str:
    return str(stage.condition(shop.get(kind, name), type_).get("reason"))


def a_new_operator() -> None:
    Kubectl(SYSTEM)(
        "delete", "pod", "-l", f"app.kubernetes.io/instance={RELEASE}", "--force", "--grace-period=0"
    )


def is_over(shop: Kubectl) -> bool:
    is_ready = stage.is_condition(shop, "broker", "main", "Ready")
    return is_ready and is_served(shop, 2, "flights") and is_served(shop, 2, "seats")


def test_an_operator_that_begins_while_its_broker_is_away_or_refuses_it_replaces_no_consumer(
    shop: Kubectl,
) -> None:
    begun(shop, stage.group("flights", replicas=2), members=2)
    begun(shop, stage.group("seats", mode="Sessions", queues=1, replicas=2), members=2)
    before = workloads(shop)
    assert len(before["pods"]) == 4
    assert len(before["replica sets"]) == len(before["revisions"]) == 1

    shop("delete", "pod", "main-0", "--force", "--grace-period=0")
    until(lambda: not stage.is_condition(shop, "broker", "main", "Ready"), what="the outage to be seen")
    a_new_operator()
    until(lambda: is_over(shop), what="the broker to be back", timeout_s=180)
    assert workloads(shop) == before

    # The broker takes the new password when the kubelet has brought it the Secret: until then it is a wrong one.
    wrong = base64.b64encode(b"wrong").decode()
    shop("patch", "secret", ADMINISTRATOR, "--type=merge", "-p", f'{{"data": {{"password": "{wrong}"}}}}')
    until(
        lambda: reason(shop, "broker", "main", "Ready") == "LoginRefused",
        what="the login to be refused",
        every_s=0.2,
    )
    a_new_operator()
    until(lambda: is_over(shop), what="the broker to take the password", timeout_s=300)
    assert workloads(shop) == before
    assert restarts(shop) == 0


def test_a_consumer_is_changed_as_its_manifest_says_while_the_broker_is_away(shop: Kubectl) -> None:
    begun(shop, stage.group("flights", replicas=2), members=2)
    before = workloads(shop)
    quota = {"spec": {"hard": {"pods": "2"}}}  # which the consumers have: the broker's pod is not made anew
    shop.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "no-broker"}, **quota})
    until(
        lambda: shop.get("resourcequota", "no-broker").get("status", {}).get("used"),
        what="the quota to be counted",
    )
    shop("delete", "pod", "main-0", "--force", "--grace-period=0")
    until(lambda: not stage.is_condition(shop, "broker", "main", "Ready"), what="the outage to be seen")
    shop.apply(stage.group("flights", replicas=2, delay_ms=1))
    until(lambda: len(shop.select("replicaset", PODS)) == 2, what="a new ReplicaSet")
    (deployment,) = shop.select("deployment", PODS)
    assert deployment["metadata"]["generation"] == before["generations"]["deployment"][0] + 1
    assert not stage.is_condition(shop, "broker", "main", "Ready")
    shop("delete", "resourcequota", "no-broker")
    until(lambda: is_served(shop, 2), what="the changed consumers to serve", timeout_s=240)


def test_a_group_that_was_never_on_a_broker_is_deleted_at_once_and_says_so(shop: Kubectl) -> None:
    secret = {"stringData": {"username": "admin", "password": "admin"}, "type": "kubernetes.io/basic-auth"}
    shop.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "nowhere"}, **secret},
        _nowhere(),
        stage.group("stray", brokerRef={"name": "nowhere"}),
    )
    until(
        lambda: reason(shop, "lbg", "stray", "Provisioned") == "BrokerNotReady", what="the broker's absence"
    )
    since = time.monotonic()
    shop("delete", "lbg", "stray", f"--timeout={AT_ONCE_S}s")
    assert time.monotonic() - since < AT_ONCE_S

    def said() -> list[str]:
        events = json.loads(shop("get", "events", "--field-selector=involvedObject.name=stray", "-o", "json"))
        return [one["message"] for one in events["items"] if one["reason"] == "Deleted"]

    (message,) = until(said, what="the event")
    assert "never provisioned" in message


def _nowhere() -> Object:
    spec = {
        "rabbitmq": {"uris": ["amqp://192.0.2.1:5672"], "adminSecretName": "nowhere"}
    }  # RFC 5737: nobody's
    return {"apiVersion": "lbg.dev/v1alpha1", "kind": "Broker", "metadata": {"name": "nowhere"}, "spec": spec}
