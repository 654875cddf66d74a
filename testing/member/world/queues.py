"""The broker's queues: each with a single active consumer, in the order in which they came."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lbg_sidecar.core.delivery import Attachment

if TYPE_CHECKING:
    from testing.member.world.broker import Link

PUBLISHER = "p"

COMMANDS_MAX = 32
"""A channel of a quorum queue has so many commands on the way; a close discards the acks that wait behind them."""


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

    @property
    def identity(self) -> tuple[str, int, int]:
        return (PUBLISHER, self.hash_, self.seq)


class Consumer:
    def __init__(self, attachment: Attachment, link: Link) -> None:
        self.attachment = attachment
        self.link = link
        self.unacked: dict[int, Item] = {}
        self.tags = 0
        self.swallows = False  # what is delivered to it gets lost on the way
        self.taken_back: set[int] = set()  # tags that it still believes to hold
        self.acks: deque[tuple[int, bool]] = deque()  # not applied yet: tag, and whether all before it

    def apply(self, acks: Iterable[tuple[int, bool]]) -> None:
        for tag, multiple in acks:
            for known in [known for known in self.unacked if known == tag or (multiple and known < tag)]:
                del self.unacked[known]


class BrokerQueue:
    """A queue with a single active consumer: the first that waits, until it goes."""

    def __init__(self) -> None:
        self.ready: deque[Item] = deque()
        self.consumers: list[Consumer] = []

    @property
    def holds(self) -> bool:
        """True if something of it is unacknowledged."""
        return any(consumer.unacked for consumer in self.consumers)

    def find(self, attachment: Attachment) -> Consumer | None:
        return next((c for c in self.consumers if c.attachment is attachment), None)

    def pump(self) -> None:
        if not self.consumers:
            return
        active = self.consumers[0]
        batch = []
        while self.ready and len(active.unacked) < active.attachment.prefetch:
            item = self.ready.popleft()
            active.tags += 1
            active.unacked[active.tags] = item
            item.deliveries += 1
            batch.append((active.tags, item))
        if batch and not active.swallows:
            active.link.down("queues", ("deliver", active.attachment, batch))

    def swallow(self) -> None:
        """The active consumer gets nothing any more, and keeps its connection."""
        if self.consumers:
            self.consumers[0].swallows = True

    def suspect(self) -> int:
        """A partition hides the active consumer's node for a moment: what it holds is taken back, without a word, and
        it waits behind the others. Returns how many messages that were."""
        if not self.consumers:
            return 0
        consumer = self.consumers.pop(0)
        self.consumers.append(consumer)
        held, consumer.unacked = consumer.unacked, {}
        consumer.taken_back |= held.keys()
        self._requeue(held.values())
        return len(held)

    def apply_acks(self, consumer: Consumer) -> None:
        consumer.apply(consumer.acks)
        consumer.acks.clear()
        self.pump()

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        consumer.apply(itertools.islice(consumer.acks, COMMANDS_MAX))
        consumer.acks.clear()
        self._requeue(consumer.unacked.values())

    def _requeue(self, items: Iterable[Item]) -> None:
        self.ready = deque(sorted([*items, *self.ready], key=lambda item: item.place))
        self.pump()
