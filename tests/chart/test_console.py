"""The console that the chart brings, where somebody asks for it."""

from __future__ import annotations

from typing import Any

import pytest

from testing.kubernetes.chart import LARGE, Object, named, of_kind, rendered


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global helm
    import helm_python as helm


def console(**values: Any) -> list[Object]:
    objects = rendered({"console": {"enabled": True, **values}})
    return [one for one in objects if one["metadata"]["name"] == "lbg-console"]


def container_of(objects: list[Object]) -> Object:
    pod = named(objects, "Deployment", "lbg-console")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return dict(container)


@pytest.mark.long
def test_there_is_nothing_of_it_by_default() -> None:
    assert not [one for one in rendered() if "console" in one["metadata"]["name"]]


def test_it_is_read_only_and_without_an_ingress_unless_somebody_asks() -> None:
    objects = console()
    assert {one["kind"] for one in objects} == {"Deployment", "Service", "NetworkPolicy"}
    assert "--read-only" in container_of(objects)["args"]
    assert "--read-only" not in container_of(console(readOnly=False))["args"]


def test_by_default_it_observes_the_groups_of_broker_main_as_its_administrator() -> None:
    objects = console()
    assert [one for one in container_of(objects)["args"] if one != "--read-only"] == [
        "--listen=0.0.0.0:8780",
        "--broker=amqps://main.lbg-system.svc:5671",
        "--cafile=/var/run/lbg/ca/ca.crt",
        "--username-file=/var/run/lbg/login/username",
        "--password-file=/var/run/lbg/login/password",
    ]
    assert secrets_of(objects) == {
        "main-lbg-admin": ["username", "password"],
        "main-lbg-tls": ["ca.crt"],  # and none of the keys
    }


def test_of_another_broker_it_has_the_addresses_and_secrets_that_are_given() -> None:
    objects = rendered(LARGE)
    arguments = container_of(objects)["args"]
    assert "--url=https://lbg.example.com" in arguments
    assert [one for one in arguments if one.startswith(("--broker", "--management"))] == [
        "--broker=amqps://rabbit-0.messaging.svc",
        "--broker=amqps://rabbit-1.messaging.svc",
        "--management=https://rabbit.messaging.svc:15671",
    ]
    assert secrets_of(objects) == {"console-login": ["username", "password"], "rabbitmq-ca": ["ca.crt"]}
    plain = console(uris=["amqp://rabbit.messaging.svc"], loginSecretName="login")
    assert "--cafile" not in str(container_of(plain)["args"])
    assert secrets_of(plain) == {"login": ["username", "password"]}


def secrets_of(objects: list[Object]) -> dict[str, list[str]]:
    """The keys that the console's pod mounts, by Secret; all are mounted read-only, and the pod waits for none."""
    pod = named(objects, "Deployment", "lbg-console")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    mounts = pod["containers"][0]["volumeMounts"]
    assert {one["name"] for one in mounts if one["readOnly"]} == {one["name"] for one in pod["volumes"]}
    found = [one["secret"] for one in pod["volumes"]]
    assert all(one["optional"] for one in found), "the pod starts, and is ready, before they are made"
    return {one["secretName"]: [item["key"] for item in one["items"]] for one in found}


def test_the_service_the_probes_and_the_ingress_lead_to_its_port() -> None:
    objects = rendered(LARGE)
    container, service = container_of(objects), named(objects, "Service", "lbg-console")
    assert container["ports"] == [{"name": "http", "containerPort": 8780, "protocol": "TCP"}]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "http"}
    labels = named(objects, "Deployment", "lbg-console")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert [one["targetPort"] for one in service["spec"]["ports"]] == ["http"]
    (ingress,) = of_kind(objects, "Ingress")
    ((rule,), (tls,)) = ingress["spec"]["rules"], ingress["spec"]["tls"]
    assert (rule["host"], tls["hosts"]) == ("lbg.example.com", ["lbg.example.com"])
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": "lbg-console", "port": {"name": "http"}}


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"uris": ["amqp://rabbit"]}, "set console.loginSecretName to a Secret with username and password"),
        ({"uris": ["amqp://me:secret@rabbit"]}, "at '/console/uris/0'"),
        ({"ingress": {"enabled": True}}, "set console.ingress.host"),
        ({"url": "https://example.com/lbg"}, "at '/console/url'"),
    ],
)
def test_what_cannot_work_is_refused(values: dict[str, Any], line: str) -> None:
    with pytest.raises(helm.HelmError, match=line):
        console(**values)
