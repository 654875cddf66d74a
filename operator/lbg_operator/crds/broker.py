"""A Broker, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lbg_operator.crds.consumer import bytes_in
from lbg_operator.crds.group import Metadata, old_crds
from lbg_operator.errors import ManifestError

ANY_NAMESPACE = "*"

MESSAGE_MIN_BYTES = 64 * 1024
MESSAGE_MAX_BYTES = 512 * 1024 * 1024
"""Of `lbg broker serve --max-message-size`."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """A broker that the operator runs. What is None is the operator's setting, or the cluster's."""

    image: str | None
    resources: Mapping[str, Any] | None = field(hash=False)
    storage_bytes: int
    storage_class: str | None
    tls_secret: str | None
    max_message_bytes: int | None


@dataclass(frozen=True, slots=True)
class RabbitMQ:
    """A broker that is there. `management_uris` is empty where they follow from `uris`."""

    uris: tuple[str, ...]
    management_uris: tuple[str, ...]
    admin_secret: str
    ca_secret: str | None


@dataclass(frozen=True, slots=True)
class BrokerManifest:
    metadata: Metadata
    engine: Embedded | RabbitMQ
    allowed_namespaces: frozenset[str]
    adopting_namespaces: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> BrokerManifest:
        """From an object as the API server gives it. Raises ManifestError."""
        try:
            return cls._parse(manifest)
        except KeyError as error:
            raise old_crds(error) from None

    @classmethod
    def _parse(cls, manifest: Mapping[str, Any]) -> BrokerManifest:
        spec = manifest["spec"]
        return cls(
            metadata=Metadata.of(manifest),
            engine=_embedded(spec["embedded"]) if "embedded" in spec else _rabbitmq(spec["rabbitmq"]),
            allowed_namespaces=frozenset(spec["allowedNamespaces"]),
            adopting_namespaces=frozenset(spec.get("allowAdoptionFrom", ())),
        )

    @property
    def embedded(self) -> Embedded:
        """The engine of a broker that the operator runs; to be asked of no other."""
        assert isinstance(self.engine, Embedded)
        return self.engine

    @property
    def secret_names(self) -> frozenset[str]:
        """The Secrets of its namespace that the manifest names."""
        match self.engine:
            case Embedded(tls_secret=tls):
                named: tuple[str | None, ...] = (tls,)
            case RabbitMQ(admin_secret=admin, ca_secret=ca):
                named = (admin, ca)
        return frozenset(name for name in named if name is not None)

    def allows(self, namespace: str) -> bool:
        """True if groups of `namespace` may be on it."""
        allowed = self.allowed_namespaces
        return namespace == self.metadata.namespace or namespace in allowed or ANY_NAMESPACE in allowed

    def allows_adoption(self, namespace: str) -> bool:
        """True if groups of `namespace` may take over what is another owner's on it: its own has to be listed too."""
        return not self.adopting_namespaces.isdisjoint((namespace, ANY_NAMESPACE))


def has_authority(manifest: Mapping[str, Any]) -> bool:
    """True if a Broker's clients are given an authority to trust, also where the rest cannot be parsed.

    Of the manifest alone: what pods look like does not change with what the broker answers.
    """
    spec = manifest["spec"]
    return "embedded" in spec or "caSecretName" in spec.get("rabbitmq", {})


def _embedded(spec: Mapping[str, Any]) -> Embedded:
    storage = spec["storage"]
    return Embedded(
        image=spec.get("image"),
        resources=spec.get("resources"),
        storage_bytes=bytes_in("spec.embedded.storage.size", storage["size"]),
        storage_class=storage.get("storageClassName"),
        tls_secret=spec.get("tlsSecretName"),
        max_message_bytes=_message_bytes(spec.get("maxMessageSize")),
    )


def _message_bytes(quantity: str | int | None) -> int | None:
    if quantity is None:
        return None
    field = "spec.embedded.maxMessageSize"
    size_bytes = bytes_in(field, quantity)
    if not MESSAGE_MIN_BYTES <= size_bytes <= MESSAGE_MAX_BYTES:
        raise ManifestError(field, f"{quantity} must be from 64Ki to 512Mi")
    return size_bytes


def _rabbitmq(spec: Mapping[str, Any]) -> RabbitMQ:
    return RabbitMQ(
        uris=tuple(spec["uris"]),
        management_uris=tuple(spec.get("managementURIs", ())),
        admin_secret=spec["adminSecretName"],
        ca_secret=spec.get("caSecretName"),
    )
