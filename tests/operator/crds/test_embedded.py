"""Objects of an embedded Broker in the cluster, each from the manifest alone."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import kubernetes_validate
import pytest
from cryptography import x509

from lbg_core.client import BrokerAddress, Credentials
from lbg_operator.certificates import issue, renewal_due
from lbg_operator.crds import BrokerManifest, GroupManifest, bytes_in, quantity_of
from lbg_operator.errors import ManifestError
from lbg_operator.kube.kinds import kind_of
from lbg_operator.resources.embedded_broker import (
    certificate_in,
    embedded_of,
    hosts_of,
    management_uris_of,
    uris_of,
)
from lbg_operator.resources.network_policy import network_policy_of
from lbg_operator.settings import OperatorSettings
from testing.kubernetes.manifests import broker_manifest, consumer, group_manifest

SETTINGS = OperatorSettings(
    sidecar_image="lbg-sidecar:1", broker_image="lbg-broker:1", namespace="lbg-system"
)
OUTSIDE = OperatorSettings(sidecar_image="lbg-sidecar:1", broker_image="lbg-broker:1")
LOGIN = Credentials("admin", "a-password")
CERTIFICATE = issue(("main.shop.svc",), now=datetime(2031, 1, 1, tzinfo=UTC), days=90)
KUBERNETES = "1.29"


def broker_of(embedded: dict[str, Any] | None = None, **spec: Any) -> BrokerManifest:
    return BrokerManifest.parse(broker_manifest({"embedded": embedded or {}, **spec}))


def objects_of(
    broker: BrokerManifest, settings: OperatorSettings = SETTINGS, *, tls: bool = True
) -> dict[str, dict[str, Any]]:
    """By kind; Secrets by their names."""
    made = embedded_of(broker, settings, login=LOGIN, certificate=CERTIFICATE if tls else None)
    return {one["metadata"]["name"] if one["kind"] == "Secret" else one["kind"]: one for one in made}


def pod_of(broker: BrokerManifest) -> dict[str, Any]:
    pod: dict[str, Any] = objects_of(broker)["StatefulSet"]["spec"]["template"]["spec"]
    return pod


FULL = {
    "image": "mine:2",
    "resources": {"limits": {"memory": "1Gi"}},
    "storage": {"size": "20Gi", "storageClassName": "fast"},
    "maxMessageSize": "32Mi",
}


@pytest.mark.long
@pytest.mark.parametrize("embedded", [{}, FULL], ids=["least", "full"])
def test_every_object_is_what_kubernetes_takes_and_the_operator_knows(embedded: dict[str, Any]) -> None:
    made = objects_of(broker_of(embedded, allowedNamespaces=["bank"]))
    assert set(made) == {
        "main-lbg-admin",
        "main-lbg-tls",
        "PersistentVolumeClaim",
        "Service",
        "NetworkPolicy",
        "StatefulSet",
    }
    for one in made.values():
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
        assert kind_of(one["apiVersion"], one["kind"])
        assert one["metadata"]["namespace"] == "shop"
        assert one["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "lbg-operator"


def test_all_goes_with_the_broker_but_the_volume_stays() -> None:
    for name, one in objects_of(broker_of()).items():
        owners = [(owner["kind"], owner["uid"]) for owner in one["metadata"].get("ownerReferences", [])]
        assert owners == ([] if name == "PersistentVolumeClaim" else [("Broker", "uid-of-main")])


# The pod


def test_the_pod_keeps_to_the_restricted_profile() -> None:
    """Kubernetes: "Pod Security Standards", Restricted."""
    pod = pod_of(broker_of())
    (container,) = pod["containers"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        "fsGroup": 65532,
        "fsGroupChangePolicy": "OnRootMismatch",
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert {next(iter(set(one) - {"name"})) for one in pod["volumes"]} == {"persistentVolumeClaim", "secret"}
    assert pod["automountServiceAccountToken"] is False


def test_the_largest_message_is_said_to_the_broker_where_the_manifest_says_it() -> None:
    """An image of before the option is given none."""
    (container,) = pod_of(broker_of())["containers"]
    assert "--max-message-size" not in container["args"]
    (container,) = pod_of(broker_of({"maxMessageSize": "64Mi"}))["containers"]
    at = container["args"].index("--max-message-size")
    assert container["args"][at + 1] == str(64 * 1024 * 1024)


@pytest.mark.parametrize("size", ["1Gi", 1000, "63Ki"])
def test_a_largest_message_that_the_broker_would_not_take_is_refused(size: str | int) -> None:
    with pytest.raises(ManifestError, match=r"spec.embedded.maxMessageSize.* must be from 64Ki to 512Mi"):
        broker_of({"maxMessageSize": size})


def test_where_the_cluster_assigns_users_the_pod_names_neither_a_user_nor_a_group() -> None:
    """OpenShift: the profile restricted-v2 refuses an fsGroup or a runAsUser that is not of the namespace's range."""
    settings = replace(SETTINGS, assigns_users=True)
    made = embedded_of(broker_of(), settings, login=Credentials("admin", "one"), certificate=CERTIFICATE)
    (stateful_set,) = (one for one in made if one["kind"] == "StatefulSet")
    pod = stateful_set["spec"]["template"]["spec"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    (container,) = pod["containers"]
    assert container["securityContext"]["runAsNonRoot"] is True


def test_what_the_manifest_says_comes_before_the_settings() -> None:
    (own,), (usual,) = pod_of(broker_of(FULL))["containers"], pod_of(broker_of())["containers"]
    assert (own["image"], usual["image"]) == ("mine:2", "lbg-broker:1")
    assert (own["resources"], usual["resources"]) == (FULL["resources"], SETTINGS.broker_resources)


def test_the_pod_is_given_the_servers_key_and_not_the_authoritys() -> None:
    volumes = {one["name"]: one for one in pod_of(broker_of())["volumes"]}
    tls = volumes["tls"]["secret"]
    assert tls["secretName"] == "main-lbg-tls"
    assert [item["key"] for item in tls["items"]] == ["tls.crt", "tls.key"]
    assert "a-password" not in str(pod_of(broker_of()))


def test_a_secret_of_somebody_elses_is_used_and_none_is_made() -> None:
    broker = broker_of({"tlsSecretName": "from-cert-manager"})
    made = objects_of(broker, tls=False)
    assert "main-lbg-tls" not in made
    volumes = {one["name"]: one for one in made["StatefulSet"]["spec"]["template"]["spec"]["volumes"]}
    assert volumes["tls"]["secret"]["secretName"] == "from-cert-manager"


def test_a_pod_is_changed_by_its_manifest_and_not_by_its_secrets() -> None:
    """The broker takes up certificate and password while it runs: to restart it would only interrupt everybody."""
    broker, later = broker_of(), issue(("main.shop.svc",), now=datetime(2032, 1, 1, tzinfo=UTC), days=90)
    first, second = (
        embedded_of(broker, SETTINGS, login=Credentials("admin", password), certificate=certificate)[-2]
        for password, certificate in (("one", CERTIFICATE), ("two", later))
    )
    assert first["kind"] == "StatefulSet"
    assert first == second


def test_probes_wait_for_recovery_and_ask_what_the_container_serves() -> None:
    (container,) = pod_of(broker_of())["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"amqps": 5671, "https": 15671}
    startup, liveness, readiness = (
        container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe")
    )
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 1800
    assert {probe["timeoutSeconds"] for probe in (startup, liveness, readiness)} == {5}
    assert (startup["httpGet"], liveness["httpGet"]) == (liveness["httpGet"], startup["httpGet"])
    assert (liveness["httpGet"]["path"], readiness["httpGet"]["path"]) == ("/healthz", "/readyz")
    assert {probe["httpGet"]["scheme"] for probe in (startup, liveness, readiness)} == {"HTTPS"}
    assert "--listen 0.0.0.0:5671 --management 0.0.0.0:15671" in " ".join(container["args"])


# How it is reached


def test_addresses_are_those_of_the_service_and_of_the_certificate() -> None:
    broker = broker_of()
    service = objects_of(broker)["Service"]
    (place,) = BrokerAddress(uris_of(broker), management_uris_of(broker), username="u").places()
    assert (place.host, place.port, place.vhost) == ("main.shop.svc", 5671, "/")
    assert {port["port"] for port in service["spec"]["ports"]} == {5671, 15671}
    assert management_uris_of(broker) == ("https://main.shop.svc:15671",)
    assert place.host in hosts_of(broker)
    pod_labels = objects_of(broker)["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= pod_labels.items()


def test_consumers_reach_a_broker_whose_disk_is_full() -> None:
    assert objects_of(broker_of())["Service"]["spec"]["publishNotReadyAddresses"] is True


def test_a_secret_gives_the_certificate_back() -> None:
    secret = objects_of(broker_of())["main-lbg-tls"]
    assert certificate_in(secret) == CERTIFICATE
    assert secret["type"] == "kubernetes.io/tls"


@pytest.mark.parametrize("data", [{}, {"tls.crt": "eA==", "tls.key": "eA==", "ca.crt": "not base64"}])
def test_a_secret_with_something_missing_gives_none(data: dict[str, str]) -> None:
    assert certificate_in({"data": data}) is None
    assert certificate_in({}) is None


def test_a_certificate_of_cert_manager_has_no_key_of_its_authority() -> None:
    told = {
        name: base64.b64encode(CERTIFICATE.certificate_pem).decode()
        for name in ("tls.crt", "tls.key", "ca.crt")
    }
    found = certificate_in({"data": told})
    assert found is not None
    assert found.ca_key_pem == b""
    assert x509.load_pem_x509_certificate(found.certificate_pem)


def test_a_certificate_is_due_when_it_is_not_for_the_brokers_hosts() -> None:
    now = datetime(2031, 1, 2, tzinfo=UTC)
    hosts = hosts_of(broker_of())
    assert renewal_due(CERTIFICATE.certificate_pem, hosts, now=now)
    assert not renewal_due(issue(hosts, now=now, days=90).certificate_pem, hosts, now=now)


def test_the_administrators_secret_is_a_basic_auth() -> None:
    secret = objects_of(broker_of())["main-lbg-admin"]
    assert secret["type"] == "kubernetes.io/basic-auth"
    told = {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}
    assert told == {"username": "admin", "password": "a-password"}


# The volume


@pytest.mark.parametrize("size", ["10Gi", "1536Mi", "2Ti", "3Ki", "1001"])
def test_a_volume_is_as_large_as_it_was_said_to_be(size: str) -> None:
    claim = objects_of(broker_of({"storage": {"size": size, "storageClassName": "fast"}}))[
        "PersistentVolumeClaim"
    ]
    assert claim["spec"]["resources"]["requests"]["storage"] == size
    assert claim["spec"]["storageClassName"] == "fast"
    assert quantity_of(bytes_in("size", size)) == size


def test_without_a_storage_class_the_clusters_default_counts() -> None:
    made = objects_of(broker_of())
    claim, pod = made["PersistentVolumeClaim"], made["StatefulSet"]["spec"]["template"]["spec"]
    assert "storageClassName" not in claim["spec"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


# Who may connect


def allowed_to(policy: dict[str, Any], port: int) -> list[dict[str, Any]]:
    """The peers that rules let in to `port`."""
    rules = [rule for rule in policy["spec"]["ingress"] if {"port": port, "protocol": "TCP"} in rule["ports"]]
    return [peer for rule in rules for peer in rule["from"]]


def named(*namespaces: str) -> dict[str, Any]:
    one_of = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}
    return {"namespaceSelector": {"matchExpressions": [one_of]}}


def test_amqp_is_for_allowed_namespaces_and_management_for_the_operator() -> None:
    policy = objects_of(broker_of(allowedNamespaces=["bank"]))["NetworkPolicy"]
    assert allowed_to(policy, 5671) == [named("bank", "lbg-system", "shop")]
    assert allowed_to(policy, 15671) == [named("lbg-system")]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy["spec"], "nothing out; an empty list is a new generation at each apply"


def test_a_star_lets_every_namespace_in_to_amqp_only() -> None:
    policy = objects_of(broker_of(allowedNamespaces=["*"]))["NetworkPolicy"]
    assert allowed_to(policy, 5671) == [{"namespaceSelector": {}}]
    assert allowed_to(policy, 15671) == [named("lbg-system")]


def test_without_an_operator_in_the_cluster_nobody_gets_to_the_management() -> None:
    policy = objects_of(broker_of(), OUTSIDE)["NetworkPolicy"]
    assert allowed_to(policy, 5671) == [named("shop")]
    assert allowed_to(policy, 15671) == []


def ports_of(spec: dict[str, Any]) -> list[tuple[int, str]]:
    policy = network_policy_of(GroupManifest.parse(group_manifest({"consumer": spec})))
    assert policy is not None
    kubernetes_validate.validate(policy, KUBERNETES, strict=True)
    (rule,) = policy["spec"]["ingress"]
    assert policy["spec"]["podSelector"] == {"matchLabels": {"lbg.dev/group": "orders"}}
    return [(port["port"], port["protocol"]) for port in rule["ports"]]


TEMPLATE = {
    "spec": {
        "containers": [
            {"name": "app", "image": "a", "ports": [{"containerPort": 8080}, {"containerPort": 9090}]},
            {"name": "dns", "image": "d", "ports": [{"containerPort": 8080, "protocol": "UDP"}]},
        ],
        "initContainers": [{"name": "proxy", "image": "p", "ports": [{"containerPort": 15000}]}],
    }
}


def test_consumers_are_reached_at_what_they_declare_but_not_at_what_the_sidecar_calls() -> None:
    assert ports_of(consumer(template=TEMPLATE)) == [
        (8080, "UDP"),
        (8751, "TCP"),
        (9090, "TCP"),
        (15000, "TCP"),
    ]
    assert (8080, "TCP") in ports_of(consumer("Stream", template=TEMPLATE))
    assert ports_of(consumer()) == [(8751, "TCP")]


def test_a_group_without_consumers_has_no_policy() -> None:
    assert network_policy_of(GroupManifest.parse(group_manifest())) is None


def test_a_group_and_a_broker_of_one_name_have_policies_of_their_own() -> None:
    group = network_policy_of(GroupManifest.parse(group_manifest({"consumer": consumer()}, name="main")))
    assert group is not None
    broker = objects_of(broker_of())["NetworkPolicy"]
    assert group["metadata"]["name"] != broker["metadata"]["name"]
