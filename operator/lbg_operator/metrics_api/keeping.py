"""What the server stands on, kept right in the cluster: its certificate, whom it answers, and who trusts it."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..certificates import Certificate, issue, renewal_due
from ..children.naming import MANAGER
from ..cluster.kinds import API_SERVICE, CONFIG_MAP, SECRET
from ..cluster.seam import Cluster, Object
from .answers import API_GROUP, API_VERSION
from .callers import CONFIG_MAP as CALLERS
from .callers import CONFIG_MAP_NAMESPACE, Callers
from .doors import Standing
from .providing import Service, service_of

API_SERVICE_NAME = f"{API_VERSION}.{API_GROUP}"
CERTIFICATE_DAYS = 90
TOKEN_KEY_BYTES = 32
_TOKEN_KEY = "token.key"


def names_of(service: Service) -> list[str]:
    """What callers may know a Service by; the API server asks for the first (kube-aggregator)."""
    name = f"{service.name}.{service.namespace}.svc"
    return [name, f"{name}.cluster.local", f"{service.name}.{service.namespace}", service.name]


def secret_name(service: Service) -> str:
    return f"{service.name}-metrics-api"


async def kept(cluster: Cluster, service: Service, *, now: datetime) -> Standing:
    """One round: make or renew what is due, and read the rest. Raises ClusterError.

    Several operators may run for a moment (a rollout): a Secret that another has written in between is not written
    over, which is an error of this round, and the next one reads it.
    """
    secret = await cluster.read(SECRET, service.namespace, secret_name(service))
    certificate, token_key = certificate_in(secret), token_key_in(secret)
    if certificate is None or renewal_due(certificate.certificate_pem, names_of(service), now=now):
        certificate = issue(names_of(service), now=now, days=CERTIFICATE_DAYS, former=certificate)
        token_key = token_key or secrets.token_bytes(TOKEN_KEY_BYTES)
        secret = await _written(cluster, service, secret, certificate, token_key)
    elif not token_key:
        token_key = secrets.token_bytes(TOKEN_KEY_BYTES)
        await _written(cluster, service, secret, certificate, token_key)
    api_service = await cluster.read(API_SERVICE, None, API_SERVICE_NAME)
    if (patch := bundle_patch(api_service, service, certificate.ca_pem)) is not None:
        await cluster.merge(API_SERVICE, None, API_SERVICE_NAME, patch)
    callers = Callers.of(await cluster.read(CONFIG_MAP, CONFIG_MAP_NAMESPACE, CALLERS))
    return Standing(certificate, token_key, callers)


def bundle_patch(api_service: Mapping[str, Any] | None, ours: Service, ca_pem: bytes) -> Object | None:
    """What makes the API server trust `ca_pem` for our Service; None when it does, or asks somebody else's."""
    if service_of(api_service) != ours:
        return None
    assert api_service is not None
    bundle = _text(ca_pem)
    if api_service["spec"].get("caBundle") == bundle:
        return None
    # With the version that was looked at: it may be pointed to somebody else's in between.
    version = api_service["metadata"]["resourceVersion"]
    spec = {"caBundle": bundle, "insecureSkipTLSVerify": None}
    return {"metadata": {"resourceVersion": version}, "spec": spec}


async def _written(
    cluster: Cluster, service: Service, former: Object | None, certificate: Certificate, token_key: bytes
) -> Object | None:
    data = {
        "tls.crt": _text(certificate.certificate_pem),
        "tls.key": _text(certificate.key_pem),
        "ca.crt": _text(certificate.ca_pem),
        "ca.key": _text(certificate.ca_key_pem),
        _TOKEN_KEY: _text(token_key),
    }
    if former is not None:
        version = {"resourceVersion": former["metadata"]["resourceVersion"]}
        return await cluster.merge(
            SECRET, service.namespace, secret_name(service), {"metadata": version, "data": data}
        )
    labels = {"app.kubernetes.io/name": "lbg", "app.kubernetes.io/managed-by": MANAGER}
    metadata = {"name": secret_name(service), "namespace": service.namespace, "labels": labels}
    return await cluster.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "type": "kubernetes.io/tls",
            "data": data,
        }
    )


def certificate_in(secret: Mapping[str, Any] | None) -> Certificate | None:
    told = [_bytes(secret, name) for name in ("tls.crt", "tls.key", "ca.crt", "ca.key")]
    return Certificate(*told) if all(told) else None


def token_key_in(secret: Mapping[str, Any] | None) -> bytes:
    """Empty where there is none."""
    return _bytes(secret, _TOKEN_KEY)


def _bytes(secret: Mapping[str, Any] | None, name: str) -> bytes:
    try:
        return base64.b64decode(((secret or {}).get("data") or {}).get(name, ""), validate=True)
    except ValueError:
        return b""


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
