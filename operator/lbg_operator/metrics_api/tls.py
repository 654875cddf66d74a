"""Serving certificate, client authority and callers of the metrics API, which change while it runs.

Kubernetes, "Configure the Aggregation Layer": the API server authenticates and authorises a request, and passes it on
with a client certificate of its own. An aggregated server takes it from nobody else; what certificate that is, is told
in ConfigMap kube-system/extension-apiserver-authentication.

An SSLContext takes new certificates and authorities, and forgets none. So each change makes another one, and a
handshake takes the newest: OpenSSL lets the callback for the server's name put another context in place.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lbg_operator.certificates import Certificate, issue, renewal_due
from lbg_operator.kube.api import Cluster, Object
from lbg_operator.kube.kinds import API_SERVICE, CONFIG_MAP, SECRET
from lbg_operator.metrics_api.metrics import API_GROUP, API_VERSION, Service, service_of
from lbg_operator.resources.names import MANAGER

CONFIG_MAP_NAMESPACE, CLIENT_CA_CONFIG_MAP = "kube-system", "extension-apiserver-authentication"
_AUTHORITY, _NAMES = "requestheader-client-ca-file", "requestheader-allowed-names"


@dataclass(frozen=True, slots=True)
class Callers:
    """Certificates that `authority_pem` has signed for one of `names`; for anyone, where `names` is empty."""

    authority_pem: str
    names: frozenset[str]

    @classmethod
    def of(cls, config_map: Mapping[str, Any] | None) -> Callers | None:
        """None where the API server does not say, which is where it has no aggregation layer."""
        data: Mapping[str, str] = (config_map or {}).get("data") or {}
        authority = data.get(_AUTHORITY, "")
        try:
            names = json.loads(data.get(_NAMES) or "[]")
        except ValueError:
            return None
        if not authority.strip() or not isinstance(names, list):
            return None
        return cls(authority, frozenset(map(str, names)))

    def include(self, certificate: Mapping[str, Any]) -> bool:
        """`certificate` as `ssl` describes one that it has verified: empty if the client has shown none."""
        if not certificate:
            return False
        if not self.names:
            return True
        subject = (pair for part in certificate.get("subject", ()) for pair in part)
        return any(kind == "commonName" and name in self.names for kind, name in subject)


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """Certificate and accepted callers of the server. `callers` is None while unknown: nobody is accepted."""

    certificate: Certificate
    token_key: bytes
    callers: Callers | None


class _Context(ssl.SSLContext):
    """Has the authority by which it verifies clients."""

    authority_pem = ""


class TlsContextSwitch:
    """Accepts no handshake until there is a certificate."""

    def __init__(self) -> None:
        self.serving_config: ServingConfig | None = None
        self._context: _Context | None = None
        self.listening = _bare()
        """The context to listen with."""
        self.listening.sni_callback = self._newest

    def switch_to(self, config: ServingConfig) -> None:
        """For every handshake from now on. Raises ssl.SSLError for what OpenSSL cannot read."""
        if config != self.serving_config:
            self._context, self.serving_config = _context_of(config), config

    def admits(self, connection: ssl.SSLObject) -> bool:
        """True if requests on `connection` come from the API server.

        A connection outlives the authority that it was accepted by: its client has to connect again.
        """
        callers = self.serving_config.callers if self.serving_config is not None else None
        former = connection.context
        if callers is None or not isinstance(former, _Context):
            return False
        return former.authority_pem == callers.authority_pem and callers.include(
            connection.getpeercert() or {}
        )

    def _newest(self, connection: ssl.SSLObject, _name: str | None, _initial: ssl.SSLContext) -> int | None:
        if self._context is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._context
        return None


def _bare() -> _Context:
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    # Nothing is resumed: a client is verified at each handshake, by the authority that is trusted now.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    # A client without a certificate gets an answer in HTTP: it may be KEDA, or a health check.
    context.verify_mode = ssl.CERT_OPTIONAL
    # Any certificate of the list is an authority, as for the API server itself.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _context_of(config: ServingConfig) -> _Context:
    context = _bare()
    # load_cert_chain reads files only; the key is to be on no disk, and the operator's root is read-only.
    with open(os.memfd_create("certificate"), "wb") as together:
        together.write(config.certificate.key_pem + config.certificate.certificate_pem)
        together.flush()
        context.load_cert_chain(f"/proc/self/fd/{together.fileno()}")
    if config.callers is not None:
        context.load_verify_locations(cadata=config.callers.authority_pem)
        context.authority_pem = config.callers.authority_pem
    return context


def tls_side(transport: Any) -> ssl.SSLObject:
    """The TLS side of a connection's transport."""
    ssl_object: ssl.SSLObject = transport.get_extra_info("ssl_object")
    return ssl_object


API_SERVICE_NAME = f"{API_VERSION}.{API_GROUP}"
CERTIFICATE_DAYS = 90
TOKEN_KEY_BYTES = 32
_TOKEN_KEY = "token.key"


def names_of(service: Service) -> list[str]:
    """Names by which callers know a Service; the API server asks for the first (kube-aggregator)."""
    name = f"{service.name}.{service.namespace}.svc"
    return [name, f"{name}.cluster.local", f"{service.name}.{service.namespace}", service.name]


def secret_name(service: Service) -> str:
    return f"{service.name}-metrics-api"


async def ensure_serving_config(cluster: Cluster, service: Service, *, now: datetime) -> ServingConfig:
    """Creates or renews what is due, and reads the rest. Raises ClusterError.

    Several operators may run for a moment (a rollout): a Secret that another has written in between is not written
    over, which is an error of this call, and the next one reads it.
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
    callers = Callers.of(await cluster.read(CONFIG_MAP, CONFIG_MAP_NAMESPACE, CLIENT_CA_CONFIG_MAP))
    return ServingConfig(certificate, token_key, callers)


def bundle_patch(api_service: Mapping[str, Any] | None, service: Service, ca_pem: bytes) -> Object | None:
    """Patch that makes the API server trust `ca_pem` for `service`; None when it does, or uses another Service."""
    if service_of(api_service) != service:
        return None
    assert api_service is not None
    bundle = _text(ca_pem)
    if api_service["spec"].get("caBundle") == bundle:
        return None
    # With the version that was read: it may be pointed to another Service in between.
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
    parts = [_bytes(secret, name) for name in ("tls.crt", "tls.key", "ca.crt", "ca.key")]
    return Certificate(*parts) if all(parts) else None


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
