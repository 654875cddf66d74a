"""The brokers that can carry a group, as far as a group's topology differs between them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import SpecError

RABBITMQ = "RabbitMQ"
EMBEDDED = "LBG"
"""`product` in the server properties of connection.start (AMQP 0-9-1, section 1.4.2.1)."""

OLDEST_RABBITMQ = (3, 10)
"""The oldest RabbitMQ that is tested (docs/rabbitmq.md, "Versions")."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A broker product and its version (major, minor, patch)."""

    product: str
    version: tuple[int, int, int]

    @classmethod
    def parse(cls, product: str, version: str) -> Engine:
        """From what a broker says of itself when a connection starts; raises SpecError for an unknown one."""
        if product not in (RABBITMQ, EMBEDDED):
            raise SpecError("engine", product, f"must be {RABBITMQ} or {EMBEDDED}")
        found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
        if found is None:
            raise SpecError("engine version", version, "must begin with numbers, as 4.0.5 does")
        return cls(product, (int(found[1]), int(found[2]), int(found[3] or 0)))

    @classmethod
    def announced(cls, properties: Mapping[str, object]) -> Engine:
        """From the server properties of connection.start; raises SpecError for an unknown one."""
        return cls.parse(str(properties.get("product", "")), str(properties.get("version", "")))

    @property
    def is_rabbitmq(self) -> bool:
        return self.product == RABBITMQ

    @property
    def is_too_old(self) -> bool:
        """Whether no new group should be made there."""
        return self.is_rabbitmq and self.version[:2] < OLDEST_RABBITMQ

    @property
    def counts_for_owners_only(self) -> bool:
        """Whether a passive declare needs the permission to configure, as in one release (rabbitmq-server#16085)."""
        return self.is_rabbitmq and self.version == (4, 3, 0)

    @property
    def waits_for_disconnected(self) -> bool:
        """True if quorum queues wait for consumers of a node that is gone before they requeue what these hold."""
        return self.is_rabbitmq and self.version >= (4, 3, 0)

    def __str__(self) -> str:
        return f"{self.product} {'.'.join(map(str, self.version))}"
