"""The broker: queues, the members' mailboxes, and what members reach of both over their connections."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from lbg_core.group import queue_of
from lbg_core.group.key_moves import Entry as KeyMoveEntry
from lbg_core.group.key_moves import KeyMove
from lbg_core.group.members_protocol import Message
from lbg_core.group.message_codec import decode
from lbg_core.group.parked_keys import Entry
from lbg_core.group.parked_snapshot import SnapshotPlace, SnapshotReader
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.effects import Attach
from lbg_sidecar.core.key_moves import KeyMoves
from lbg_sidecar.core.member_core import MemberCore
from lbg_sidecar.io.connection import OnCounted
from testing.member.world.history import History, Item, mail
from testing.member.world.queues import BrokerQueue, Consumer, Link
from testing.simulation.clock import Process


class Broker:
    def __init__(self, history: History) -> None:
        self.history = history
        self.process = Process("broker")
        self.queues = [BrokerQueue() for _ in range(history.queue_count)]
        self.routes = {hash_: [queue_of(hash_, history.queue_count)] for hash_ in range(history.hash_count)}
        self.key_move: KeyMove | None = None  # in the group's record
        self.moves_log: list[KeyMoveEntry] | None = None  # the stream of that change
        self._routed_until: dict[int, float] = defaultdict(float)  # by queue
        self.links: list[Link] = []
        self.mailboxes: dict[int, Link] = {}  # by the member's index
        self.applies_after_s = 0.0  # an ack, on a queue
        self.answers: list[Message | None] = []  # to administrators
        self.loses: tuple[type, ...] = ()  # messages of members that never arrive
        self.parked_log: list[Entry] = []  # the stream of parked keys
        self.parked_from: SnapshotPlace | None = None  # in the group's record
        self.parking: list[Item] = []  # the parking queue
        self._attached: dict[Attachment, BrokerQueue] = {}
        self._places = 0
        self._seqs: dict[int, int] = defaultdict(int)

    # What publishers and administrators do

    def publish(self, key: str | None, *, hash_: int | None = None) -> Item:
        history = self.history
        if hash_ is None:
            hash_ = history.random.randrange(history.hash_count) if key is None else sum(map(ord, key))
            hash_ %= history.hash_count
        item = Item(hash_, key, self._seqs[hash_], 0)
        self._seqs[hash_] += 1
        history.published[item.identity] = item
        history.by_key[key].append(item.identity)
        self._enqueue(item)
        return item

    def publish_again(self, item: Item) -> None:
        """A publisher that did not get its confirm sends the same message again; or an administrator publishes a copy
        of the parking queue to the group."""
        self._enqueue(replace(item, deliveries=0, copy=""))

    def record(self, entry: Entry) -> None:
        """An entry is in the stream, and every reader gets it in its order."""
        self.parked_log.append(entry)
        for link in self.links:
            link.down("parked", link.read_parked, [entry])

    def release(self, link: Link, item: Item) -> None:
        """A copy of the parking queue goes to the mailbox of a member."""
        link.down("group", link.driver.on_mail, item.released())

    def _enqueue(self, item: Item) -> None:
        history = self.history
        for number in self.routes[item.hash_]:
            one = item if number == self.routes[item.hash_][0] else replace(item)
            lag_s = history.chances.routing_lag_s * history.random.random()
            if not lag_s:
                self._arrive(number, one)
            else:
                at = self._routed_until[number] = max(self._routed_until[number], history.now + lag_s)
                history.at(at, self._arrive, number, one)

    def _arrive(self, number: int, item: Item) -> None:
        if number >= len(self.queues):
            self.history.violations.append(
                f"{self.history.now:.3f} {item} arrives at a queue that is deleted"
            )
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
                consumer.link.down("queues", consumer.link.cancelled, consumer.attachment)
        del self.queues[count:]

    def fence(self, queue: int, move: str) -> None:
        self._arrive(queue, Item(-1, None, -1, 0, fence=move))

    def has_fence(self, queue: int) -> bool:
        return any(item.fence is not None for item in self.queues[queue].ready)

    def delete_moves(self) -> None:
        self.moves_log = None
        for link in self.links:
            if link.follows:
                link.follows = False
                link.down("moves", link.driver.feed, MemberCore.absent, KeyMoves)

    def find_staging(self, link: Link, move: str, queue: int) -> None:
        link.down("moves", link.driver.on_staging_found, move, queue < len(self.queues))

    def record_move(self, entry: KeyMoveEntry) -> None:
        if self.moves_log is None:
            return
        self.moves_log.append(entry)
        for link in self.links:
            if link.follows:
                link.down("moves", link.driver.feed, MemberCore.entries, KeyMoves, [entry])

    def follow_moves(self, link: Link, is_on: bool) -> None:
        link.follows = is_on and self.moves_log is not None
        if link.follows:
            link.down("moves", link.driver.feed, MemberCore.entries, KeyMoves, list(self.moves_log or ()))
        elif is_on:
            link.down("moves", link.driver.feed, MemberCore.absent, KeyMoves)

    # Connections of members

    def connected(self, link: Link, index: int) -> None:
        self.mailboxes[index] = link
        self.links.append(link)
        link.reader = SnapshotReader(self.parked_from)
        first = 0 if self.parked_from is None else self.parked_from.offset
        link.down("parked", link.read_parked, self.parked_log[first:])

    def drops(self, link: Link) -> None:
        if link not in self.links:
            return
        link.open = False
        self.links.remove(link)
        for index in [i for i, mailbox in self.mailboxes.items() if mailbox is link]:
            del self.mailboxes[index]
            for other in self.links:
                if other.awaits == index:
                    other.down("group", other.driver.on_will, index)
        for queue in self.queues:
            for consumer in [c for c in queue.consumers if c.link is link]:
                self.history.disturbed += len(consumer.unacked)
                queue.remove(consumer)
        link.down("group", link.lost)

    def await_will(self, link: Link, index: int | None) -> None:
        link.awaits = index
        link.down("wills", link.driver.feed, MemberCore.will_watched, index)

    def post(self, link: Link, body: bytes, to: int | str | None) -> None:
        if to is None:
            self.post_to_all(body)
        elif isinstance(to, str):
            self.answers.append(decode(body))
        elif to not in self.mailboxes:
            link.down("group", link.driver.on_returned, body, to)
        elif not isinstance(decode(body), self.loses):
            self._mail(self.mailboxes[to], body)

    def post_to_all(self, body: bytes) -> None:
        for mailbox in list(self.mailboxes.values()):
            self._mail(mailbox, body)

    # What they do to queues

    def attach(self, link: Link, effect: Attach, events: object) -> None:
        attachment = effect.attachment
        if attachment.queue >= len(self.queues):
            link.down("queues", link.driver.machine.refused, attachment, 404, "no queue")
            link.down("queues", link.driver.feed, MemberCore.closed, attachment)
            return
        queue = self._attached[attachment] = self.queues[attachment.queue]
        queue.consumers.append(Consumer(attachment, link))
        link.down("queues", link.driver.feed, MemberCore.attached, attachment)
        queue.pump()

    def ack(self, attachment: Attachment, tag: int, multiple: bool) -> None:
        queue = self._attached.get(attachment)
        if queue not in self.queues:  # it was deleted, and may have been made anew
            return
        consumer = queue.find(attachment)
        assert consumer is not None, "an ack on a channel that is closed"
        assert tag in consumer.unacked or tag in consumer.taken_back, (
            "RabbitMQ answers 406 to an unknown delivery tag"
        )
        consumer.acks.append((tag, multiple))
        if self.applies_after_s:
            self.history.at(self.history.now + self.applies_after_s, queue.apply_acks, consumer)
        else:
            queue.apply_acks(consumer)

    def close(self, link: Link, attachment: Attachment) -> None:
        link.down("queues", link.driver.feed, MemberCore.closed, attachment)
        queue = self._attached.get(attachment)
        if queue in self.queues:
            consumer = queue.find(attachment)
            assert consumer is not None
            queue.remove(consumer)

    def count(self, link: Link, queue: int, on_counted: OnCounted) -> None:
        history = self.history
        counted: tuple[int | None, ...] = (None, None)
        if queue < len(self.queues) and (
            history.calm or history.random.random() >= history.chances.look_fails
        ):
            counted = len(self.queues[queue].ready), min(1, len(self.queues[queue].consumers))
        link.down("queues", on_counted, queue, *counted)

    def has_lost(self, in_flight: InFlight) -> bool:
        """Another member may have it."""
        attachment = in_flight.attachment.beside_of or in_flight.attachment
        if attachment.queue >= len(self.queues):
            return True
        consumer = self.queues[attachment.queue].find(attachment)
        return consumer is None or in_flight.tag in consumer.taken_back

    # What they publish

    def dead_letter(self, link: Link, in_flight: InFlight) -> None:
        self.history.dead[in_flight.identity] += 1
        self.confirm(link, "dead-letter", in_flight)

    def confirm(self, link: Link, lane: str, in_flight: InFlight) -> None:
        link.down(lane, link.driver.on_confirmed, in_flight)

    def park(self, link: Link, in_flight: InFlight, copy: str) -> None:
        self.parking.append(replace(self.history.published[in_flight.identity], copy=copy))
        self.confirm(link, "park", in_flight)

    def record_of(self, link: Link, entry: Entry, in_flight: InFlight | None) -> None:
        self.record(entry)
        if in_flight is not None:
            link.down("entries", link.driver.feed, MemberCore.recorded, in_flight)

    def forward(self, link: Link, in_flight: InFlight, queue: int) -> None:
        self._arrive(queue, replace(self.history.published[in_flight.identity], deliveries=0))
        self.confirm(link, "forward", in_flight)

    def _mail(self, link: Link, body: bytes) -> None:
        history = self.history
        if history.calm or history.random.random() >= history.chances.hint_lost:
            link.down("group", link.driver.on_mail, mail(body))
