"""Login of the operator: in a pod, by a kubeconfig, and by the official client's plugins."""

from __future__ import annotations

import asyncio
import base64
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from lbg_operator.kube.api import ClusterError
from lbg_operator.kube.login import Login, log_in, of_kubeconfig, of_service_account
from testing.kubernetes.fake_cluster import FakeCluster
from testing.kubernetes.served_cluster import TOKEN, ServedCluster

SERVER = "https://10.0.0.1:6443"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def text(blob: trustme.Blob) -> str:
    return base64.b64encode(blob.bytes()).decode()


def kubeconfig(place: Path, cluster: dict[str, Any], user: dict[str, Any], **more: Any) -> Path:
    path = place / "config"
    told = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}, {"name": "there"}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "other", "user": {"token": "wrong"}}, {"name": "u", "user": user}],
        **more,
    }
    path.write_text(yaml.safe_dump(told))
    return path


def test_a_pod_has_its_service_account_and_trusts_its_authority_alone(
    tmp_path: Path, authority: trustme.CA
) -> None:
    (tmp_path / "token").write_text("t\n")
    (tmp_path / "ca.crt").write_bytes(authority.cert_pem.bytes())
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    login = of_service_account(environ, tmp_path)
    assert login is not None
    assert (login.server, login.headers) == ("https://[fd00::1]:443", {"Authorization": "Bearer t"})
    assert login.ssl is not None
    assert login.ssl.cert_store_stats()["x509"] == 1
    assert login.ssl.verify_mode == ssl.CERT_REQUIRED
    assert "Bearer t" not in repr(login)
    assert of_service_account({}, tmp_path) is None
    assert of_service_account(environ, tmp_path / "none") is None


@pytest.mark.parametrize("has_data", [True, False])
def test_certificates_of_a_kubeconfig_are_data_or_files_beside_it(
    tmp_path: Path, authority: trustme.CA, has_data: bool
) -> None:
    mine = authority.issue_cert("me@example.org")
    parts = {
        "certificate-authority": authority.cert_pem,
        "client-certificate": mine.cert_chain_pems[0],
        "client-key": mine.private_key_pem,
    }
    told = {f"{name}-data": text(blob) for name, blob in parts.items()}
    if not has_data:
        for name, blob in parts.items():
            (tmp_path / name).write_bytes(blob.bytes())
        told = {name: name for name in parts}
    cluster = {"server": SERVER} | {name: told[name] for name in told if "authority" in name}
    user = {name: told[name] for name in told if "client" in name}
    login = of_kubeconfig([kubeconfig(tmp_path, cluster, user)])
    assert login is not None
    assert (login.server, login.headers) == (SERVER, {})
    assert login.ssl is not None
    assert login.ssl.cert_store_stats()["x509"] == 1


def test_a_server_without_tls_and_one_that_is_not_to_be_verified(tmp_path: Path) -> None:
    plain = of_kubeconfig([kubeconfig(tmp_path, {"server": "http://127.0.0.1:8001"}, {"token": "t"})])
    assert plain == Login("http://127.0.0.1:8001", {"Authorization": "Bearer t"})
    cluster = {"server": SERVER, "insecure-skip-tls-verify": True}
    login = of_kubeconfig([kubeconfig(tmp_path, cluster, {})])
    assert login is not None
    assert login.ssl is not None
    assert login.ssl.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize(
    ("cluster", "user", "more"),
    [
        ({"server": SERVER}, {"exec": {"command": "aws"}}, {}),
        ({"server": SERVER}, {"auth-provider": {"name": "oidc"}}, {}),
        ({"server": SERVER}, {"tokenFile": "token"}, {}),
        ({"server": SERVER, "tls-server-name": "other"}, {"token": "t"}, {}),
        ({"server": SERVER, "proxy-url": "http://proxy"}, {"token": "t"}, {}),
        ({}, {"token": "t"}, {}),
        ({"server": SERVER}, {"token": "t"}, {"current-context": "none"}),
        ({"server": SERVER}, {"token": "t"}, {"current-context": "there"}),
    ],
)
def test_what_is_not_all_in_the_kubeconfig_is_left_to_the_official_client(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], more: dict[str, Any]
) -> None:
    assert of_kubeconfig([kubeconfig(tmp_path, cluster, user, **more)]) is None
    assert of_kubeconfig([tmp_path / "none"]) is None
    assert of_kubeconfig([tmp_path / "config", tmp_path / "another"]) is None


@pytest.mark.process
async def test_a_program_that_prints_a_token_is_asked_by_the_official_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential = '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"}}'
    program = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "echo",
        "args": [credential],
        "interactiveMode": "Never",
    }
    path = kubeconfig(tmp_path, {"server": SERVER}, {"exec": program})
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    monkeypatch.setenv("KUBECONFIG", str(path))
    login = await log_in()
    assert (login.server, login.headers["Authorization"].lower()) == (SERVER, "bearer t")


@pytest.mark.long
@pytest.mark.parametrize("told", ["clusters: [", "users: 7"])
async def test_a_kubeconfig_that_cannot_be_read_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    (tmp_path / "config").write_text(told)
    monkeypatch.setattr(
        "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config")
    )
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(ClusterError, match="the Kubernetes API: "):
        await log_in()


PROGRAM = """
import asyncio, sys
from lbg_operator.runtime.operator import suited
from lbg_operator.kube.client import connected

async def main():
    cluster = await connected()
    print(await cluster.version(), sorted({one.split(".")[0] for one in sys.modules} & {"kubernetes", "requests"}))
    await cluster.close()

asyncio.run(main())
"""


@pytest.mark.process
@pytest.mark.process
async def test_the_operators_process_does_not_load_the_official_client(tmp_path: Path) -> None:
    """Nor does kopf, which would: a quarter of the memory of an operator that has no groups."""
    async with ServedCluster(FakeCluster()) as served:
        environ = {"KUBECONFIG": str(served.kubeconfig(tmp_path, token=TOKEN)), "PATH": ""}
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" []\n"), done.stdout
