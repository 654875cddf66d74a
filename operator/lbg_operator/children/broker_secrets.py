"""The Secrets of a broker that the operator runs: its first administrator and its certificate, and back."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Protocol

from ..certificates import Certificate
from ..manifests import BrokerManifest
from .naming import admin_name, owned_by_broker, tls_name


class Login(Protocol):
    @property
    def username(self) -> str: ...

    @property
    def password(self) -> str: ...


def administrator_of(broker: BrokerManifest, login: Login) -> dict[str, Any]:
    return _secret(
        broker,
        admin_name(broker.metadata.name),
        "kubernetes.io/basic-auth",
        {"username": login.username.encode(), "password": login.password.encode()},
    )


def tls_of(broker: BrokerManifest, certificate: Certificate) -> dict[str, Any]:
    """With the authority's key: the next certificate is signed by it, and clients need not hear of that. The broker's
    pod is given the server's files only."""
    return _secret(
        broker,
        tls_name(broker.metadata.name),
        "kubernetes.io/tls",
        {
            "tls.crt": certificate.certificate_pem,
            "tls.key": certificate.key_pem,
            "ca.crt": certificate.ca_pem,
            "ca.key": certificate.ca_key_pem,
        },
    )


def certificate_in(secret: Mapping[str, Any]) -> Certificate | None:
    """What `tls_of` put into a Secret, or cert-manager did; None if something is missing or is no base64."""
    try:
        told = {name: b64decode(value, validate=True) for name, value in secret.get("data", {}).items()}
        return Certificate(told["tls.crt"], told["tls.key"], told["ca.crt"], told.get("ca.key", b""))
    except (KeyError, ValueError):
        return None


def _secret(broker: BrokerManifest, name: str, kind: str, told: Mapping[str, bytes]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": owned_by_broker(broker.metadata, name),
        "type": kind,
        "data": {key: b64encode(value).decode() for key, value in told.items()},
    }
