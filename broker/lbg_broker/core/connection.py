"""A connection: an authenticated user in a virtual host, with channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lbg_broker.core.channel import Channel
from lbg_broker.core.effects import Effect
from lbg_broker.core.queue import Queue
from lbg_broker.core.vhost import Vhost


@dataclass(slots=True, frozen=True)
class Peer:
    """Description of the other end, for display; only its capabilities change anything."""

    name: str
    host: str = ""
    port: int = 0
    tls: bool = False
    client_properties: Mapping[str, object] = field(default_factory=dict)

    def has(self, capability: str) -> bool:
        """True if the client announced this capability."""
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, Mapping) and capabilities.get(capability) is True


class Connection:
    """`paused`: the peer reads too slowly, so nothing is delivered until its buffer has drained. `is_blocked`: it
    published while the store had no room, and is not read from until there is some."""

    __slots__ = (
        "byte_credit",
        "cancel_notify",
        "channels",
        "closing",
        "id",
        "is_blocked",
        "opened_at",
        "ordered_refusal",
        "out",
        "owned",
        "paused",
        "peer",
        "revocable",
        "user",
        "vhost",
    )

    def __init__(self, number: int, user: str, vhost: Vhost, *, peer: Peer, opened_at: float) -> None:
        self.id = number
        self.user = user
        self.vhost = vhost
        self.peer = peer
        self.opened_at = opened_at
        self.ordered_refusal = peer.has("lbg.ordered_refusal")
        self.cancel_notify = peer.has("consumer_cancel_notify")
        self.revocable = peer.has("lbg.revoke")
        self.byte_credit = peer.has("lbg.prefetch_size")
        self.channels: dict[int, Channel] = {}
        self.owned: set[Queue] = set()  # exclusive queues, which die with it
        self.paused = False
        self.is_blocked = False
        self.closing = False
        self.out: list[Effect] = []
