"""`kubectl lbg`: commands on the group of a LoadBalancedGroup, by a kubectl of the test."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message
from lbgroup.commands import run
from lbgroup.kubectl import ForwardTarget, Kubectl, PortForward, kubectl_lbg, target_of
from testing.command_line import Lbg, Said, Where, end_started, start_lbg
from testing.kubernetes.stand_in_kubectl import StandInKubectl
from testing.rabbitmq.node import wait_until

GUARD_S = 60
OPTIONS = ("--namespace", "shop", "--context", "here")


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInKubectl:
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return StandInKubectl(directory)


Plugin = Callable[..., Said]


@pytest.fixture
def plugin(capfd: pytest.CaptureFixture[str], kubectl: StandInKubectl) -> Plugin:
    def call(*arguments: str) -> Said:
        kubectl.save()
        capfd.readouterr()
        status = run(kubectl_lbg, list(arguments), name="kubectl lbg")
        return Said(status, *capfd.readouterr())

    return call


def has_group(kubectl: StandInKubectl, group: str, *uris: str, password: str = "", ca: str = "") -> None:
    secret = {
        "username": group,
        "password": password,
        "uris": ",".join(uris),
        **({"ca.crt": ca} if ca else {}),
    }
    kubectl.objects["shop/loadbalancedgroups.lbg.dev/flights"] = {
        "metadata": {"name": "flights", "namespace": "shop"},
        "status": {"groupName": group, "secretName": "flights-lbg"},
    }
    kubectl.objects["shop/secrets/flights-lbg"] = {
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in secret.items()}
    }


def forwarded_to(kubectl: StandInKubectl, uri: str) -> str:
    """`uri` as that of a Service, which leads there."""
    parts = urlsplit(uri)
    kubectl.ports["messaging/service/main:5672"] = parts.port or 0
    return f"amqp://main.messaging.svc:5672{parts.path}"


@pytest.mark.process
def test_top_show_and_peek_are_of_the_group_by_its_secret_and_the_password_is_nowhere(
    lbg: Lbg, broker: Where, unique: str, kubectl: StandInKubectl, plugin: Plugin
) -> None:
    made = json.loads(lbg("group", "create", unique, "--queue-count", "2", "-o", "json", *broker.options).out)
    password = made["password"]
    login = broker.broker.replace("guest:guest@", f"{unique}:{password}@")
    has_group(kubectl, unique, forwarded_to(kubectl, broker.broker), password=password)
    began, ends = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        began.set()
        await ends.wait()

    async def seen() -> dict[str, Any]:
        settings = MemberSettings(broker=login, group=unique, name="m", rebalance_delay_s=0.2)
        async with Member(settings, handle), GroupPublisher(login, group=unique) as publisher:
            await publisher.publish(key="a", body=b"first", topic="t")
            await began.wait()
            commands = {
                "show": ("-n", "shop", "group", "show", "flights", "--context", "here", "--json"),
                "top": ("top", *OPTIONS, "flights", "--once", "--json"),
                "peek": ("peek", "flights", *OPTIONS, "--json"),
                "key": ("group", "key", "flights", "a", *OPTIONS, "--json"),
            }
            said = {name: await asyncio.to_thread(plugin, *words) for name, words in commands.items()}
            ends.set()
        assert [one.err for one in said.values()] == [""] * 4
        return {name: json.loads(one.out) for name, one in said.items()}

    found = asyncio.run(asyncio.wait_for(seen(), GUARD_S))
    assert found["show"]["group"] == unique
    assert [member["name"] for member in found["show"]["members"]] == ["m"]
    assert [one["group"] for one in found["top"]["groups"]] == [unique]
    ((message,), silent) = found["peek"]["messages"], found["peek"]["silent"]
    assert (message["state"], message["body"], silent) == ("running", "first", [])
    assert [one["word"] for one in found["key"]["steps"]] == ["running"]
    assert kubectl.commands[:2] == ["get loadbalancedgroups.lbg.dev flights", "get secrets flights-lbg"]
    assert kubectl.commands[2:3] == ["port-forward service/main :5672"]
    assert all("--context=here" in call["arguments"] for call in kubectl.calls)
    assert password not in json.dumps(kubectl.calls)


@pytest.mark.process
def test_the_console_is_of_the_group_and_signs_a_browser_in_without_a_password(
    broker: Where, group: str, kubectl: StandInKubectl
) -> None:
    has_group(kubectl, group, forwarded_to(kubectl, broker.broker), password="guest")
    kubectl.objects["shop/secrets/flights-lbg"]["data"]["username"] = base64.b64encode(b"guest").decode()
    kubectl.save()
    main = "import lbgroup.kubectl; raise SystemExit(lbgroup.kubectl.main())"
    words = ("console", "flights", "--listen", "127.0.0.1:0", *OPTIONS)
    command = [sys.executable, "-c", main, *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            link = re.search(r"http://([^/\s]+)(/\S+)", process.stderr.readline())
            assert link is not None
            answers = [answer_of(*link.groups()) for _ in range(2)]
        finally:
            process.terminate()
        assert process.wait(GUARD_S) == 128 + signal.SIGTERM
    assert [one.status for one in answers] == [303, 401]
    assert answers[0].headers["Location"] == f"/groups/{group}"


def answer_of(host: str, path: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(host, timeout=GUARD_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


@pytest.mark.process
def test_the_certificate_of_a_broker_is_checked_for_its_name_in_the_cluster(
    tmp_path: Path, kubectl: StandInKubectl, plugin: Plugin
) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("main.messaging.svc")
    chain, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    chain.write_bytes(b"".join(pem.bytes() for pem in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(key)
    ca = authority.cert_pem.bytes().decode()
    files = ("--certfile", str(chain), "--keyfile", str(key), "--no-management")
    data = ("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    broker = start_lbg("broker", "serve", "--json", *data, *files)
    assert broker.stdout is not None
    port = urlsplit(json.loads(broker.stdout.readline())["amqp"]).port or 0
    for service in ("main", "other"):
        kubectl.ports[f"messaging/service/{service}:5671"] = port
    has_group(kubectl, "guest", "amqps://main.messaging.svc", password="guest", ca=ca)
    trusted = plugin("group", "show", "flights", *OPTIONS)
    has_group(kubectl, "guest", "amqps://other.messaging.svc", password="guest", ca=ca)
    refused = plugin("group", "show", "flights", *OPTIONS)
    end_started()
    assert trusted.last_line.startswith("lbg: error: there is no group 'guest' on this broker")
    assert "Hostname mismatch" in refused.last_line


@pytest.mark.process
def test_a_broker_outside_is_connected_to_directly_also_after_a_service_without_a_pod(
    broker: Where, group: str, kubectl: StandInKubectl, plugin: Plugin
) -> None:
    has_group(kubectl, group, "amqp://none.messaging.svc", broker.broker, password="guest")
    secret = kubectl.objects["shop/secrets/flights-lbg"]["data"]
    secret["username"] = base64.b64encode(b"guest").decode()
    said = plugin("group", "show", "flights", *OPTIONS, "--json")
    assert (said.status, json.loads(said.out)["group"]) == (0, group)
    assert kubectl.commands[2:] == ["port-forward service/none :5672"]


@pytest.mark.process
def test_a_port_forward_that_ends_is_started_again_with_the_same_local_port(
    kubectl: StandInKubectl, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        kubectl.ports["shop/pod/rabbit-0:5672"] = server.getsockname()[1]
        kubectl.save()

        def reaches() -> bool:
            try:
                with socket.create_connection(("127.0.0.1", forward.port), GUARD_S):
                    server.accept()[0].close()
                    return True
            except ConnectionRefusedError:
                return False

        with PortForward(Kubectl(), ForwardTarget("pod/rabbit-0", "shop"), 5672) as forward:
            assert reaches()
            os.kill(kubectl.calls[0]["pid"], signal.SIGKILL)
            wait_until(lambda: len(kubectl.calls) == 2, timeout_s=GUARD_S)
            wait_until(reaches, timeout_s=GUARD_S)
        assert kubectl.commands[1] == f"port-forward pod/rabbit-0 {forward.port}:5672"
        assert not reaches()


FORBIDDEN = (
    'Error from server (Forbidden): secrets "flights-lbg" is forbidden: User "jane" cannot get resource "secrets" in '
    'API group "" in the namespace "shop"'
)
NO_FORWARD = (
    'error: error upgrading connection: pods "main-0" is forbidden: User "jane" cannot create resource '
    '"pods/portforward" in API group "" in the namespace "messaging"'
)


@pytest.mark.process
@pytest.mark.parametrize(
    ("errors", "line"),
    [
        (
            {"get secrets": FORBIDDEN},
            "Secret flights-lbg cannot be read: your user needs the rule "
            '{apiGroups: [""], resources: [secrets], verbs: [get]} in namespace shop',
        ),
        (
            {"port-forward service": NO_FORWARD},
            "port 5671 of service/main in namespace messaging cannot be forwarded: your user needs the rule "
            '{apiGroups: [""], resources: [pods/portforward], verbs: [create]} in namespace messaging',
        ),
        (
            {"get loadbalancedgroups.lbg.dev": 'error: context "here" does not exist'},
            'LoadBalancedGroup flights cannot be read: context "here" does not exist',
        ),
        (
            {"port-forward service": "error: timed out waiting for the condition"},
            "port 5671 of service/main in namespace messaging cannot be forwarded: timed out waiting for the condition",
        ),
    ],
)
def test_what_kubectl_refuses_is_one_line_with_the_rule_that_is_missing(
    kubectl: StandInKubectl, plugin: Plugin, errors: dict[str, str], line: str
) -> None:
    has_group(kubectl, "flights", "amqps://main.messaging.svc.cluster.local", password="s3cret-word")
    kubectl.errors = errors
    said = plugin("group", "show", "flights", *OPTIONS)
    assert (said.status, said.out) == (1, "")
    (only,) = said.err.splitlines()
    assert only.startswith(f"lbg: error: {line}")
    assert "s3cret-word" not in only


@pytest.mark.process
def test_what_is_missing_is_one_line_with_the_remedy(kubectl: StandInKubectl, plugin: Plugin) -> None:
    def last_line() -> str:
        return plugin("group", "show", "flights", *OPTIONS).last_line.removeprefix("lbg: error: ")

    assert last_line().startswith("there is no LoadBalancedGroup flights in namespace shop: ")
    has_group(kubectl, "flights", "amqp://main.messaging.svc")
    kubectl.objects["shop/secrets/flights-lbg"]["data"].pop("password")
    assert last_line().startswith(
        "Secret flights-lbg lacks username, password or uris: `kubectl describe lbg"
    )
    del kubectl.objects["shop/secrets/flights-lbg"]
    assert last_line().startswith("LoadBalancedGroup flights has no Secret flights-lbg: ")
    kubectl.objects["shop/loadbalancedgroups.lbg.dev/flights"]["status"] = {}
    assert last_line().startswith("LoadBalancedGroup flights is not yet on its broker: ")
    (kubectl.directory / "kubectl").unlink()
    assert last_line() == "there is no kubectl on the PATH: install it, or add its directory to PATH"


@pytest.mark.parametrize(
    ("host", "target"),
    [
        ("main.lbg-system.svc", ForwardTarget("service/main", "lbg-system")),
        ("main.lbg-system.svc.cluster.local", ForwardTarget("service/main", "lbg-system")),
        ("rabbit-0.rabbit-nodes.messaging.svc", ForwardTarget("pod/rabbit-0", "messaging")),
        ("rabbit-0.rabbit-nodes.messaging.svc.cluster.local", ForwardTarget("pod/rabbit-0", "messaging")),
        ("rabbit.example.com", None),
        ("localhost", None),
        ("127.0.0.1", None),
        ("::1", None),
    ],
)
def test_a_host_in_the_cluster_is_forwarded_to_and_one_outside_is_not(
    host: str, target: ForwardTarget | None
) -> None:
    assert target_of(host, "shop") == target


@pytest.mark.process
def test_options_of_a_broker_are_refused_and_those_of_kubectl_are_taken_anywhere(
    kubectl: StandInKubectl, plugin: Plugin
) -> None:
    for option in ("--broker", "--management", "--username", "--password-file", "--cafile"):
        refused = plugin("top", "flights", f"{option}=x")
        assert (refused.status, f"No such option '{option}'" in refused.last_line) == (2, True), refused.err
    plugin("--kubeconfig", "a file", "--context=c", "group", "-n", "before", "show", "flights", "-n", "last")
    (call,) = kubectl.calls
    assert call["arguments"][:3] == ["--kubeconfig=a file", "--context=c", "--namespace=last"]
    for words in (("--help",), ("group", "--help"), ("top", "-h")):
        assert re.match(r"Usage: kubectl lbg ", plugin(*words).out)
