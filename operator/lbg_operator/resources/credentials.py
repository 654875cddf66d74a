"""Secret and ConfigMap of a group, for its consumers and publishers."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lbg_operator.crds import GroupManifest
from lbg_operator.resources.names import attributes_name, credentials_name, owned, publisher_name

AUTHORITY = "ca.crt"
"""The key of the Secret that has the authorities to trust, PEM; absent where those are the system's."""


@dataclass(frozen=True, slots=True)
class Login:
    """A group's user on its broker; `uris` are without it."""

    username: str
    password: str = field(repr=False)
    uris: tuple[str, ...]
    ca: str | None = None


def credentials_of(group: GroupManifest, login: Login) -> dict[str, Any]:
    """Secret of the group's user."""
    return _secret_of(group, credentials_name(group.metadata.name), login)


def publisher_credentials_of(group: GroupManifest, login: Login) -> dict[str, Any]:
    """Secret of the user of the group's publishers."""
    return _secret_of(group, publisher_name(group.metadata.name), login)


def _secret_of(group: GroupManifest, name: str, login: Login) -> dict[str, Any]:
    data = {
        "username": login.username,
        "password": login.password,
        "uris": ",".join(login.uris),
        AUTHORITY: login.ca,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": owned(group.metadata, name),
        "type": "Opaque",
        "data": {
            field: b64encode(value.encode()).decode() for field, value in data.items() if value is not None
        },
    }


def login_in(secret: Mapping[str, Any]) -> Login | None:
    """Login in a Secret that `credentials_of` made; None where it is not whole."""
    data = secret.get("data", {})
    try:
        fields = {name: b64decode(value, validate=True).decode() for name, value in data.items()}
        return Login(
            fields["username"], fields["password"], tuple(fields["uris"].split(",")), fields.get(AUTHORITY)
        )
    except (KeyError, ValueError):
        return None


def attributes_of(group: GroupManifest) -> dict[str, Any]:
    """ConfigMap for publishers in any language: what hashing and routing need.

    HP, HC, QC, QS and CU are the names of "Sticky Load Balancing".
    """
    spec = group.spec
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owned(group.metadata, attributes_name(group.metadata.name)),
        "data": {
            "group": spec.name,
            "hash-prefix": spec.hash_prefix,
            "hash-count": str(spec.hash_count),
            "hash-function": spec.hash_function,
            "queue-count": str(spec.queue_count),
            "record.json": spec.to_record(),
        },
    }
