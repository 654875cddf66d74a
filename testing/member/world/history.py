"""A history of a world: its messages, its time, its chances, and the score."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lbg_core.client import BasicProperties, Delivery
from lbg_core.client.republication import copied_properties
from lbg_core.group import BALANCED, HEADER_FENCE, HEADER_ROUTING_KEY
from lbg_core.group.sequences import MessageIdentity
from lbg_core.publisher.stamper import HeaderEncoder, StampedMessage
from lbg_sidecar.core.dispatcher import Rules
from testing.simulation.clock import Clock, Process

PREFIX = "h"
"""Of routing keys."""

STAMP = HeaderEncoder("p", "")


@dataclass(eq=False)
class Item:
    """A message in a broker queue."""

    hash_: int
    key: str | None
    seq: int
    place: int  # its place in the queue, which a requeue gives back to it
    deliveries: int = 0
    copy: str = ""  # in the parking queue
    fence: str | None = None  # id of the change whose fence it is
    header: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if self.fence is not None:
            self.header = BasicProperties(headers={HEADER_FENCE: self.fence}).encode()
        elif not self.header:
            self.header = STAMP.of(StampedMessage(self.key, self.hash_, 0, self.seq, 0, "", b"", 0))

    @property
    def identity(self) -> MessageIdentity:
        return (STAMP.publisher, self.hash_, self.seq)

    def delivery(self, tag: int = 0) -> Delivery:
        delivery = _delivery(self.header)
        delivery.delivery_tag, delivery.redelivered = tag, self.deliveries > 1
        delivery.exchange, delivery.routing_key = "" if self.fence else "g", f"{PREFIX}.{self.hash_}.t"
        return delivery

    def released(self) -> Delivery:
        """A copy for the mailbox of a member."""
        original = self.delivery()
        added = {HEADER_ROUTING_KEY: original.routing_key}
        return _delivery(copied_properties(original, added=added).encode())


def mail(body: bytes) -> Delivery:
    return _delivery(b"\0\0", body)


def _delivery(header: bytes, body: bytes = b"") -> Delivery:
    delivery = Delivery.__new__(Delivery)
    delivery.channel, delivery.header, delivery.body = 1, header, body
    delivery.consumer_tag = delivery.exchange = ""
    return delivery


@dataclass
class Chances:
    """Probabilities of the world's faults."""

    hint_lost: float = 0.0
    retry: float = 0.0
    drop: float = 0.0
    slow: float = 0.0
    slow_s: float = 6.0
    deaf: float = 0.0  # of a call that is not cut short by an abort
    look_fails: float = 0.0
    call_s: float = 0.01
    delay_s: float = 0.002
    routing_lag_s: float = 0.0  # of a message to its queue, less than an administrator waits
    parked_lag_s: float = 0.0  # by which a member may read the stream of parked keys late


@dataclass
class History:
    seed: int
    queue_count: int = 4
    hash_count: int = 8
    rules: Rules = field(default_factory=lambda: Rules(concurrency=4))
    balancing: dict[str, Any] = field(default_factory=dict)
    chances: Chances = field(default_factory=Chances)
    failing: set[str | None] = field(default_factory=set)  # keys whose messages never succeed
    service_s: dict[str, float] = field(default_factory=dict)  # of each call, by the name of a member

    def __post_init__(self) -> None:
        defaults = {"prefetch": 8, "client_count": 3, "on_rabbitmq": True, "assignment": BALANCED}
        self.balancing = defaults | self.balancing
        self.random = random.Random(self.seed)
        self.clock = Clock()
        self.process = Process("world")
        self.events: list[tuple[float, str, Any]] = []
        self.published: dict[MessageIdentity, Item] = {}
        self.finished: dict[MessageIdentity, int] = defaultdict(int)
        self.dead: dict[MessageIdentity, int] = defaultdict(int)
        self.by_key: dict[str | None, list[MessageIdentity]] = defaultdict(list)
        self.violations: list[str] = []
        self.repeats = 0
        self.disturbed = 0  # deliveries that were unacknowledged when a connection died
        self.resent = 0  # messages that their publisher sent twice
        self.calm = False
        self.on_call: list[Callable[[Item], None]] = []
        self.on_end: list[Callable[[], None]] = []  # for `VirtualLoop`; there are no tasks to end

    # Time

    @property
    def now(self) -> float:
        return self.clock.now

    def at(self, when: float, action: Callable[..., object], *arguments: Any) -> None:
        self.clock.at(when, self.process, action, *arguments)

    def delay(self) -> float:
        return self.random.expovariate(1 / self.chances.delay_s)

    def run(self, seconds: float) -> None:
        self.clock.run(self.now + seconds)

    # The score

    def earlier_of_key(self, item: Item) -> list[MessageIdentity]:
        """Messages of its key that were published before it."""
        return [one for one in self.by_key[item.key] if one[2] < item.seq]

    def unfinished(self) -> list[Item]:
        return [
            item for name, item in self.published.items() if not self.finished[name] and not self.dead[name]
        ]
