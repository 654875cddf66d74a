"""Login at the API server: a pod's service account, a kubeconfig, or what the official client makes of one.

A service account and a kubeconfig with a token or certificates are read here. The official client is loaded for the
others alone (programs that print tokens, identity providers): it takes 22 MB, a quarter of an operator without groups.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lbg_operator.kube.api import ClusterError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
USUAL_KUBECONFIG = "~/.kube/config"
_CERTIFICATE = frozenset({"client-certificate", "client-certificate-data"})
_KEY = frozenset({"client-key", "client-key-data"})
_OF_USERS = _CERTIFICATE | _KEY | {"token"}
_OF_CLUSTERS = frozenset(
    {"server", "certificate-authority", "certificate-authority-data", "insecure-skip-tls-verify"}
)
_NO_KUBECONFIG = (AttributeError, KeyError, TypeError, ValueError)
"""Errors of the official client about a file that is no kubeconfig."""


@dataclass(frozen=True, slots=True)
class Login:
    """`ssl` is None for a server without TLS."""

    server: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ssl: ssl.SSLContext | None = None


async def log_in() -> Login:
    """As the pod's service account, or else as KUBECONFIG says. Raises ClusterError."""
    try:
        login = of_service_account(os.environ, SERVICE_ACCOUNT) or of_kubeconfig(_kubeconfigs())
    except (OSError, ValueError) as error:  # ssl.SSLError and binascii.Error are of these
        raise ClusterError("the Kubernetes API", f"the login cannot be used: {error}") from None
    return login or await _of_official_client()


def of_service_account(environ: Mapping[str, str], place: Path) -> Login | None:
    """None outside of a pod (Kubernetes: "Accessing the Kubernetes API from a Pod"). Raises OSError."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port or not (place / "token").is_file():
        return None
    host = f"[{host}]" if ":" in host else host
    token = (place / "token").read_text().strip()
    context = ssl.create_default_context(cafile=str(place / "ca.crt"))
    return Login(f"https://{host}:{port}", _bearer(token), context)


def of_kubeconfig(paths: list[Path]) -> Login | None:
    """None for what is not all in one file: more files, another way to log in, a context that is not there.

    Raises OSError and ValueError.
    """
    if len(paths) != 1 or not paths[0].is_file():
        return None
    config = _read(paths[0])
    context = _named(config, "context", config.get("current-context"))
    cluster, user = (_named(config, kind, context.get(kind)) for kind in ("cluster", "user"))
    if not (cluster.keys() <= _OF_CLUSTERS and user.keys() <= _OF_USERS and cluster.get("server")):
        return None
    server, token = str(cluster["server"]), user.get("token")
    headers = {} if token is None else _bearer(str(token))
    if not server.startswith("https:"):
        return Login(server, headers)
    with ExitStack() as files:
        parts = {
            name: files.enter_context(_file(one, name, paths[0].parent))
            for one in (cluster, user)
            for name in ("certificate-authority", "client-certificate", "client-key")
            if name in one or f"{name}-data" in one
        }
        tls = ssl.create_default_context(cafile=parts.get("certificate-authority"))
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        if "client-certificate" in parts:
            tls.load_cert_chain(parts["client-certificate"], parts.get("client-key"))
    return Login(server, headers, tls)


async def _of_official_client() -> Login:
    from kubernetes.aio import config
    from kubernetes.aio.client import Configuration

    settings = Configuration()
    try:
        await config.load_kube_config(client_configuration=settings)
    except (config.ConfigException, OSError, *_NO_KUBECONFIG) as error:
        raise ClusterError(
            "the Kubernetes API",
            f"{error}: run in a pod with a service account, or set KUBECONFIG to a file",
        ) from None
    header = (await settings.auth_settings()).get("BearerToken", {}).get("value")
    tls = ssl.create_default_context(cafile=settings.ssl_ca_cert, cadata=settings.ca_cert_data)
    if settings.cert_file:
        tls.load_cert_chain(settings.cert_file, settings.key_file)
    if not settings.verify_ssl:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return Login(settings.host, {"Authorization": header} if header else {}, tls)


def _kubeconfigs() -> list[Path]:
    paths = os.environ.get("KUBECONFIG") or USUAL_KUBECONFIG
    return [Path(one).expanduser() for one in paths.split(os.pathsep) if one]


def _read(path: Path) -> Mapping[str, Any]:
    """The file's mapping; empty if it holds anything else. Raises OSError and ValueError."""
    try:
        config = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {error}") from None
    return config if isinstance(config, dict) else {}


def _named(config: Mapping[str, Any], kind: str, name: object) -> Mapping[str, Any]:
    """One of a kubeconfig's contexts, clusters or users; empty where there is none of that name."""
    listed = config.get(f"{kind}s")
    named = [one for one in listed if one.get("name") == name] if isinstance(listed, list) else []
    return (named[0].get(kind) if named else None) or {}


@contextmanager
def _file(entry: Mapping[str, Any], name: str, directory: Path) -> Iterator[str]:
    """File of a certificate or key, which OpenSSL reads from a file alone. Data come before a path, as in kubectl."""
    if not entry.get(f"{name}-data"):
        yield str(directory / entry[name])
        return
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        file.write(base64.b64decode(entry[f"{name}-data"]))
        yield file.name


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
