"""The pod of docs/sidecar.md is one that Kubernetes accepts, and asks of the sidecar what it offers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import trustme
import yaml
from aiohttp import web

from lbg_sidecar.process.http import observed_routes
from lbg_sidecar.process.lag import LagWatch
from lbg_sidecar.process.lifecycle import MemberLifecycle
from lbg_sidecar.process.metrics import Measures
from lbg_sidecar.process.settings import SidecarSettings, configure
from lbgroup.cli import cli
from testing import ROOT
from testing.images.build_context import DOCKERFILE, instructions

PAGE = (ROOT / "docs" / "sidecar.md").read_text()
OLDEST = "1.29"
"""The first with native sidecars by default, and the first that the page names."""


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


@pytest.fixture
def pod(manifest: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def sidecar(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["initContainers"]
    return dict(container)


@pytest.fixture
def app(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    return dict(container)


@pytest.fixture
def settings(sidecar: dict[str, Any], tmp_path: Path) -> SidecarSettings:
    """Settings that the sidecar reads from its environment there; `tmp_path` has the mounts."""
    for mount in sidecar["volumeMounts"]:
        (tmp_path / mount["mountPath"].lstrip("/")).mkdir(parents=True)
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "etc/lbg/login/ca.crt"))
    told = {}
    for one in sidecar["env"]:
        value = one.get("value", "orders-worker-7d4b9c-x2x2x")
        told[one["name"]] = f"{tmp_path}{value}" if mounted(value, sidecar) else value
    return configure(told)


def mounted(path: str, container: dict[str, Any]) -> bool:
    places = [mount["mountPath"] for mount in container["volumeMounts"]]
    return any(path == place or path.startswith(f"{place}/") for place in places)


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version().removesuffix(".0")])
def test_kubernetes_knows_every_field(manifest: dict[str, Any], version: str) -> None:
    assert f"Kubernetes {OLDEST} or newer" in PAGE
    kubernetes_validate.validate(manifest, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**manifest, "speck": {}}, version, strict=True)


def test_the_sidecar_takes_every_setting(settings: SidecarSettings, sidecar: dict[str, Any]) -> None:
    assert settings.member.group == "orders"
    assert settings.member.name.startswith("orders-worker-")
    fields = [one["valueFrom"]["fieldRef"]["fieldPath"] for one in sidecar["env"] if "valueFrom" in one]
    assert fields == ["metadata.name"]


def test_probes_and_hooks_ask_the_observed_listener_for_what_is_there(
    settings: SidecarSettings, sidecar: dict[str, Any], app: dict[str, Any], manifest: dict[str, Any]
) -> None:
    measures = Measures(lambda: 0.0)
    life = MemberLifecycle(settings, measures)
    routes = observed_routes(life, measures, LagWatch(life.state, life.count, lambda: 0.0))
    there = {route.path for route in routes if isinstance(route, web.RouteDef) and route.method == "GET"}
    ports = {port["name"]: port["containerPort"] for port in sidecar["ports"]}
    probes = [sidecar[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    for asked in (*probes, app["lifecycle"]["preStop"]["httpGet"]):
        assert asked["path"].partition("?")[0] in there
        assert ports.get(asked["port"], asked["port"]) == settings.observed.port
    assert not settings.observed.is_local
    annotations = manifest["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(settings.observed.port)


def test_the_sidecars_hook_is_a_command_that_finds_it(sidecar: dict[str, Any]) -> None:
    program, name, *arguments = sidecar["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "lbg"
    command = cli.get_command(None, name)
    assert command is not None
    params = command.make_context("lbg", arguments).params
    assert params == {"local": "127.0.0.1:8750", "wait": 25.0, "output": "table"}
    assert not {"LBG_LOCAL"} & {one["name"] for one in sidecar["env"]}


def test_each_waits_longer_than_what_it_waits_for(
    settings: SidecarSettings, sidecar: dict[str, Any], app: dict[str, Any], pod: dict[str, Any]
) -> None:
    hook = float(sidecar["lifecycle"]["preStop"]["exec"]["command"][-1])
    waiting = float(app["lifecycle"]["preStop"]["httpGet"]["path"].partition("wait=")[2])
    times = [settings.member.shutdown_grace_s, hook, waiting, pod["terminationGracePeriodSeconds"]]
    assert times == sorted(set(times))


def test_the_pod_is_allowed_by_the_restricted_profile(pod: dict[str, Any]) -> None:
    """Pod Security Standards, "Restricted"; a read-only root is ours."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert {next(iter(volume.keys() - {"name"})) for volume in pod["volumes"]} <= {"secret", "emptyDir"}


def test_what_is_written_lies_on_a_volume_that_can_be_written_to(
    pod: dict[str, Any], sidecar: dict[str, Any]
) -> None:
    told = {one["name"]: one.get("value", "") for one in sidecar["env"]}
    commits = Path(told["LBG_COMMITS"])
    (mount,) = [one for one in sidecar["volumeMounts"] if Path(one["mountPath"]) in commits.parents]
    assert not mount.get("readOnly")
    assert [volume for volume in pod["volumes"] if volume["name"] == mount["name"]] == [
        {"name": mount["name"], "emptyDir": {}}
    ]
    assert not {"LBG_JOURNAL"} & told.keys()


def test_the_user_is_the_images(pod: dict[str, Any], sidecar: dict[str, Any]) -> None:
    (user,) = [one.rest for one in instructions(DOCKERFILE.read_text()) if one.word == "USER"]
    context = pod["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
    assert context["fsGroup"] == context["runAsGroup"]  # or the Secret's files could not be read
    assert sidecar["image"].startswith("lbg-sidecar:")
