"""The broker: queues, the members' mailboxes, and the connections over which members reach both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lbg_core.group import queue_of
from lbg_core.group.key_moves import Entry as KeyMoveEntry
from lbg_core.group.key_moves import KeyMove
from lbg_core.group.parked_keys import Entry
from lbg_core.group.parked_snapshot import SnapshotPlace, SnapshotReader
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.dispatcher import NextCall
from lbg_sidecar.core.message_codec import decode
from lbg_sidecar.core.protocol import Message
from testing.member.world.queues import BrokerQueue, Consumer, Item

if TYPE_CHECKING:
    from testing.member.world.member import SimMember
    from testing.member.world.world import World


class Link:
    """One life of a member's two connections."""

    def __init__(self, world: World, member: SimMember) -> None:
        self.world = world
        self.member = member
        self.open = True  # the broker's side
        self.reader = SnapshotReader(world.broker.parked_from)
        self.writes_late = world.random.random() < 0.5
        self.follows = False  # the stream of a change of the number of queues
        self.awaits: int | None = None  # whose last will it gets
        self._clear_at: dict[str, float] = defaultdict(float)

    def up(self, pipe: str, command: tuple[Any, ...]) -> None:
        self._send(f"{pipe} up", lambda: self.world.broker.does(self, pipe, command))

    def down(self, pipe: str, event: tuple[Any, ...]) -> None:
        self._send(f"{pipe} down", lambda: self.member.hears(self, event))

    def close(self) -> None:
        """In order: what was said before still arrives."""
        self.world.at(max(self._clear_at.values()), lambda: self.world.broker.drops(self))

    def _send(self, pipe: str, action: Callable[[], None]) -> None:
        at = max(self.world.now + self.world.delay(), self._clear_at[pipe], self.world.broker.stands_until)
        if pipe in ("parked down", "moves down"):
            at = max(at, self.world.now + self.world.random.random() * self.world.chances.parked_lag_s)
        self._clear_at[pipe] = at
        self.world.at(at, action)


class Broker:
    def __init__(self, world: World) -> None:
        self.world = world
        self.queues = [BrokerQueue() for _ in range(world.queue_count)]
        self.routes = {hash_: [queue_of(hash_, world.queue_count)] for hash_ in range(world.hash_count)}
        self.key_move: KeyMove | None = None  # in the group's record
        self.moves_log: list[KeyMoveEntry] = []  # the stream of that change
        self._routed_until: dict[int, float] = defaultdict(
            float
        )  # by queue: all that was routed before has arrived
        self.links: list[Link] = []
        self.mailboxes: dict[int, Link] = {}  # by the member's index
        self.stands_until = 0.0  # it reads and says nothing before
        self.applies_after_s = 0.0  # an ack, on a queue
        self.answers: list[Message | None] = []  # to administrators
        self.loses: tuple[type, ...] = ()  # messages of members that never arrive
        self.parked_log: list[Entry] = []  # the stream of parked keys
        self.parked_from: SnapshotPlace | None = None  # in the group's record
        self.parking: list[Item] = []  # the parking queue
        self._places = 0
        self._seqs: dict[int, int] = defaultdict(int)

    def publish(self, key: str | None, *, hash_: int | None = None) -> Item:
        if hash_ is None:
            hash_ = (
                sum(map(ord, key)) % self.world.hash_count
                if key is not None
                else self.world.random.randrange(self.world.hash_count)
            )
        self._places += 1
        item = Item(hash_, key, self._seqs[hash_], self._places)
        self._seqs[hash_] += 1
        self.world.published[item.identity] = item
        self.world.by_key[key].append(item.identity)
        self._enqueue(item)
        return item

    def publish_again(self, item: Item) -> None:
        """A publisher that did not get its confirm sends the same message again."""
        self._places += 1
        self.world.resent += 1
        self._enqueue(Item(item.hash_, item.key, item.seq, self._places))

    def publish_parked(self, item: Item) -> None:
        """An administrator publishes a copy of the parking queue to the group again."""
        self._places += 1
        self._enqueue(Item(item.hash_, item.key, item.seq, self._places))

    def record(self, entry: Entry) -> None:
        """An entry is in the stream, and every reader gets it in its order."""
        self.parked_log.append(entry)
        for link in self.links:
            if link.open:
                link.down("parked", ("parked", [entry]))

    def _enqueue(self, item: Item) -> None:
        for number in self.routes[item.hash_]:
            one = item if number == self.routes[item.hash_][0] else replace(item)
            lag_s = self.world.chances.routing_lag_s * self.world.random.random()
            if not lag_s:
                self._arrive(number, one)
            else:
                at = self._routed_until[number] = max(self._routed_until[number], self.world.now + lag_s)
                self.world.at(at, partial(self._arrive, number, one))

    def _arrive(self, number: int, item: Item) -> None:
        if number >= len(self.queues):
            self.world.violations.append(f"{self.world.now:.3f} {item} arrives at a queue that is deleted")
            return
        self._places += 1
        item.place = self._places
        self.queues[number].ready.append(item)
        self.queues[number].pump()

    # Keys that move between queues

    def add_queues(self, count: int) -> None:
        self.queues += [BrokerQueue() for _ in range(count - len(self.queues))]

    def delete_queues(self, count: int) -> None:
        """Those from this number on: their consumers are cancelled."""
        for queue in self.queues[count:]:
            for consumer in queue.consumers:
                consumer.link.down("queues", ("cancelled", consumer.attachment))
        del self.queues[count:]

    def fence(self, queue: int, move: str) -> None:
        self._arrive(queue, Item(-1, None, -1, 0, fence=move))

    def has_fence(self, queue: int) -> bool:
        return any(item.fence is not None for item in self.queues[queue].ready)

    def record_move(self, entry: KeyMoveEntry) -> None:
        self.moves_log.append(entry)
        for link in self.links:
            if link.open and link.follows:
                link.down("moves", ("moves", [entry]))

    def to_all(self, body: bytes) -> None:
        for mailbox in list(self.mailboxes.values()):
            if not self._hint_is_lost():
                mailbox.down("group", ("message", body))

    def does(self, link: Link, pipe: str, command: tuple[Any, ...]) -> None:
        match command:  # a write of a member that is gone may come late, or get lost
            case _ if not link.open and not link.writes_late:
                pass
            case ("copy", held, copy):
                self.parking.append(replace(held.delivery, copy=copy))
                link.down(pipe, ("confirmed", held, NextCall.PARK))
            case ("record", entry, held):
                self.record(entry)
                if held is not None:
                    link.down(pipe, ("recorded", held, entry))
            case ("move", entry):
                self.record_move(entry)
            case ("forward", held, number):
                self._arrive(number, replace(held.delivery))
                link.down(pipe, ("confirmed", held, NextCall.FORWARD))
        if not link.open:
            return
        match command:
            case ("follow", is_on):
                link.follows = is_on
                if is_on:
                    link.down("moves", ("moves", list(self.moves_log)))
            case ("attach" | "close" | "ack", attachment, *_) if attachment.queue >= len(self.queues):
                if command[0] != "ack":
                    link.down(pipe, ("closed", attachment))
            case ("attach", attachment):
                queue = self.queues[attachment.queue]
                queue.consumers.append(Consumer(attachment, link))
                link.down(pipe, ("attached", attachment))
                queue.pump()
            case ("ack", attachment, tag, multiple):
                queue = self.queues[attachment.queue]
                consumer = queue.find(attachment)
                assert consumer is not None, "an ack on a channel that is closed"
                assert tag in consumer.unacked or tag in consumer.taken_back, (
                    "RabbitMQ answers 406 to an unknown delivery tag"
                )
                consumer.acks.append((tag, multiple))
                if self.applies_after_s:
                    applied_at = self.world.now + self.applies_after_s
                    self.world.at(applied_at, lambda: queue.apply_acks(consumer))
                else:
                    queue.apply_acks(consumer)
            case ("close", attachment):
                queue = self.queues[attachment.queue]
                consumer = queue.find(attachment)
                assert consumer is not None
                link.down(pipe, ("closed", attachment))
                queue.remove(consumer)
            case ("look", queue) if queue >= len(self.queues):
                link.down(pipe, ("looked", queue, None, None))
            case ("look", queue):
                failed = not self.world.calm and self.world.random.random() < self.world.chances.look_fails
                ready, consumers = len(self.queues[queue].ready), min(1, len(self.queues[queue].consumers))
                link.down(pipe, ("looked", queue, *((None, None) if failed else (ready, consumers))))
            case ("post", body, None):
                for mailbox in list(self.mailboxes.values()):
                    if not self._hint_is_lost():
                        mailbox.down("group", ("message", body))
            case ("post", body, str()):
                self.answers.append(decode(body))
            case ("post", body, tuple() as many):
                for to in many:
                    self.does(link, pipe, ("post", body, to))
            case ("post", body, to):
                if to not in self.mailboxes:
                    link.down(pipe, ("returned", body, to))
                elif not isinstance(decode(body), self.loses) and not self._hint_is_lost():
                    self.mailboxes[to].down("group", ("message", body))
            case ("publish", held, what):
                if what is NextCall.DEAD_LETTER:
                    self.world.dead[held.identity] += 1
                link.down(pipe, ("confirmed", held, what))

    def drops(self, link: Link) -> None:
        if not link.open:
            return
        link.open = False
        self.links.remove(link)
        for index in [i for i, mailbox in self.mailboxes.items() if mailbox is link]:
            del self.mailboxes[index]
            for other in self.links:
                if other.awaits == index:
                    other.down("group", ("will", index))
        for queue in self.queues:
            for consumer in [c for c in queue.consumers if c.link is link]:
                self.world.disturbed += len(consumer.unacked)
                queue.remove(consumer)
        if link.member.link is link and link.member.alive:
            link.down("group", ("lost",))

    def suspect(self, queue: int) -> None:
        """See `BrokerQueue.suspect`."""
        self.world.disturbed += self.queues[queue].suspect()

    def has_taken_back(self, held: InFlight) -> bool:
        consumer = self.queues[held.attachment.queue].find(held.attachment)
        return consumer is not None and held.tag in consumer.taken_back

    def _hint_is_lost(self) -> bool:
        return not self.world.calm and self.world.random.random() < self.world.chances.hint_lost
