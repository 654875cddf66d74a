"""The broker's queues, each with a single active consumer, and the pipes to their consumers."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

from lbg_core.group.parked_keys import Entry
from lbg_core.group.parked_snapshot import SnapshotReader
from lbg_sidecar.core.delivery import Attachment
from lbg_sidecar.core.member_core import MemberCore
from lbg_sidecar.core.parked_keys import Parking
from lbg_sidecar.io.driver import Driver
from testing.member.world.history import History, Item
from testing.simulation.clock import Process

COMMANDS_MAX = 32
"""A channel of a quorum queue has so many commands on the way; a close discards the acks that wait behind them."""

COME_LATE = ("copies", "entries")
READ_LATE = ("parked", "moves")


class Link:
    """One life of a member's two connections."""

    def __init__(self, history: History, broker: Process, member: Process, driver: Driver) -> None:
        self.open = True  # the broker's side
        self.is_given_up = False  # as its member does not answer heartbeats
        self.driver = driver
        self.follows = False  # the stream of a change of the number of queues
        self.awaits: int | None = None  # whose last will it gets
        self.reader = SnapshotReader(None)
        self.writes_late = history.random.random() < 0.5
        self._history = history
        self._broker_process = broker
        self._member_process = member
        self._clear_at: dict[str, float] = defaultdict(float)  # by pipe: all that was said before has arrived

    def up(self, pipe: str, action: Callable[..., object], *arguments: Any) -> None:
        at = self._history.now + self._history.delay()
        self._send(pipe, at, self._broker_process, self._arrives, pipe, action, *arguments)

    def down(self, pipe: str, action: Callable[..., object], *arguments: Any) -> None:
        history = self._history
        at = history.now + history.delay()
        if pipe in READ_LATE:
            at = max(at, history.now + history.random.random() * history.chances.parked_lag_s)
        self._send(f"{pipe} down", at, self._member_process, self._hears, action, *arguments)

    def when_lost(self, callback: Callable[[Link, str], None]) -> None:
        self._on_lost = callback

    def lost(self) -> None:
        self._on_lost(self, "the broker closed the connection")

    def cancelled(self, attachment: Attachment) -> None:
        self.driver.machine.cancelled(attachment)
        self.driver.feed(MemberCore.closed, attachment)

    def read_parked(self, entries: list[Entry]) -> None:
        if read := list(self.reader.read(entries)):
            self.driver.feed(MemberCore.entries, Parking, read)

    def _send(self, pipe: str, at: float, to: Process, *action: Any) -> None:
        self._clear_at[pipe] = at = max(at, self._clear_at[pipe])
        self._history.clock.at(at, to, *action)

    def _arrives(self, pipe: str, action: Callable[..., object], *arguments: Any) -> None:
        """A write of a member that is gone may come late, or get lost."""
        if self.open or (self.writes_late and pipe in COME_LATE):
            action(*arguments)

    def _hears(self, action: Callable[..., object], *arguments: Any) -> None:
        if self.driver.link is self:
            action(*arguments)


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
            batch.append(item.delivery(active.tags))
        if batch and not active.swallows:
            active.link.down("queues", active.link.driver.on_deliveries, active.attachment, batch)

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
