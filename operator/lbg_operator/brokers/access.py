"""How a Broker is reached as its administrator, out of its manifest and Secrets."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..manifests import BrokerManifest, RabbitMQ


@dataclass(frozen=True, slots=True)
class Access:
    """- `uris`, `management_uris`: without a login; no `management_uris`: on the usual port of the same hosts.
    - `ca`: the authorities to trust, PEM; None: the system's.
    """

    uris: tuple[str, ...]
    management_uris: tuple[str, ...]
    username: str
    password: str = field(repr=False)
    ca: str | None = None


class NotReachable(Exception):
    """What is missing before a broker can be asked anything, in one line."""


def rabbitmq_access(
    broker: BrokerManifest, admin: Mapping[str, Any] | None, ca: Mapping[str, Any] | None
) -> Access:
    """From the two Secrets as the API server gives them, None where there is none. Raises NotReachable."""
    engine = broker.engine
    assert isinstance(engine, RabbitMQ)
    if admin is None:
        raise NotReachable(
            f"Secret {engine.admin_secret} is missing in namespace {broker.metadata.namespace}: make it with username "
            "and password of an administrator"
        )
    if engine.ca_secret is not None and ca is None:
        raise NotReachable(
            f"Secret {engine.ca_secret} is missing in namespace {broker.metadata.namespace}: make it with ca.crt, or "
            "remove caSecretName"
        )
    return Access(
        uris=engine.uris,
        management_uris=engine.management_uris,
        username=_value(engine.admin_secret, admin, "username"),
        password=_value(engine.admin_secret, admin, "password"),
        ca=None if ca is None else _value(str(engine.ca_secret), ca, "ca.crt"),
    )


def _value(name: str, secret: Mapping[str, Any], key: str) -> str:
    told = secret.get("data", {}).get(key)
    if not told:
        raise NotReachable(f"Secret {name} has no {key}")
    try:
        value = b64decode(told).decode()
    except ValueError:
        raise NotReachable(f"{key} of Secret {name} is no text") from None
    return value if key == "ca.crt" else value.rstrip("\r\n")
