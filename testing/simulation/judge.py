"""Invariants of every history, judged from the publishers' confirms and the calls of the application."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from lbg_core.admin.key_move import FENCE_DELAY_S
from lbg_core.publisher.stamper import StampedMessage
from lbg_sidecar.core.acks import WINDOW_MAX
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.message import Message
from testing.simulation.context import Context, Member, MemberEnd, Publisher
from testing.simulation.network import ClientEnd

Number = tuple[str, int, int]
"""Publisher with its epoch, hash, sequence."""


@dataclass(eq=False)
class Call:
    """`row`: place in the order of `key`, or of a session. `connection`: that of its message, None if that is gone
    already. `cut_off`: another member may have its message."""

    member: Member
    message: Message
    connection: MemberEnd | None
    body: bytes
    key: str
    row: int
    cut_off: bool = False
    is_over: bool = False

    @property
    def in_flight(self) -> InFlight:
        return self.message.in_flight

    def is_of(self, connection: object, channel: int) -> bool:
        return self.connection is connection and self.in_flight.delivery.channel == channel


class Judge:
    """`violations` are in the order in which they were found. A message is known by its body."""

    def __init__(self, history: Context) -> None:
        self.history = history
        self.violations: list[str] = []
        self.digest = blake2b(digest_size=16)
        """Of all calls, with their times."""
        self.confirmed_bodies: set[bytes] = set()
        self.processed: set[bytes] = set()
        self.dead_bodies: set[bytes] = set()
        self.discarded_bodies: set[bytes] = set()
        self._discarded_before: set[bytes] = set()
        """Messages that were discarded in a store that was replaced: members that remember it drop them, others process
        them."""
        self.repeats = 0
        """Of messages that their publisher has sent once."""
        self.moves_by_load = 0
        self._cuts = 0
        """Connections of members that ended."""
        self._begun_by: dict[bytes, tuple[int, int]] = {}
        """By message, the queue from which it has begun first, and the connections that had ended by then."""
        self._bodies: dict[Number, bytes] = {}
        self._may_repeat: set[bytes] = set()
        """Messages that were unacknowledged when a connection ended."""
        self._sent_again: set[bytes] = set()
        self._unprocessed: dict[str, dict[bytes, int]] = defaultdict(dict)
        """Messages of each key that have begun, and are neither processed nor dead letters."""
        self._put_back: frozenset[bytes] = frozenset()
        self._put_back_at = float("-inf")
        """Messages of the last copy that was put back, and when: confirms of a connection before are of others."""
        self._begun: set[bytes] = set()
        self._highest: dict[str, int] = {}
        self._inside: dict[str, list[Call]] = defaultdict(list)
        self._displaced: dict[tuple[ClientEnd | None, int], int] = {}
        """By connection and channel, the highest tag of a consumer whose messages the broker has given to another one,
        without notice."""
        self._keys: dict[bytes, str] = {}
        """Keys, or sessions, of the messages that have begun."""
        self._overtaken: set[bytes] = set()
        """Messages that may begin behind a later one of their key."""
        self._forgotten: set[bytes] = set()
        """Messages that their publisher does not know any more: one that the broker loses never comes again."""
        self._routed: dict[bytes, tuple[float, int, bool]] = {}
        """By message: when it was first on its way to a queue of RabbitMQ, the number of queues then, and whether keys
        moved."""

    def violation(self, text: str) -> None:
        """The history ends with it: what comes after the first one explains nothing."""
        self.violations.append(f"{self.history.clock.now:.3f} {text}")
        self.history.note(f"VIOLATION: {text}")
        self.history.clock.is_stopped = True

    # Publishers

    def sent(self, publisher: Publisher, identity: str, message: StampedMessage) -> None:
        number = (identity, message.hash, message.seq)
        former = self._bodies.setdefault(number, message.body)
        if former != message.body:
            self.violation(f"{number} was {former!r} and is {message.body!r}")
        if message.unknown:
            self._sent_again.add(message.body)

    def confirmed(self, publisher: Publisher, identity: str, message: StampedMessage) -> None:
        body = self._bodies.get((identity, message.hash, message.seq))
        if body is None:
            body = publisher.row(message.position)[1]
        wire = publisher.wire
        is_of_former_store = wire is not None and wire.opened_at < self._put_back_at
        if not is_of_former_store or body in self._put_back:
            self.confirmed_bodies.add(body)

    def resends(self, publisher: Publisher) -> None:
        """Its connection is lost: what it had not confirmed is sent again."""
        self._sent_again.update(one.body for one in publisher.machine.floor.open if one.body)

    def publisher_ended(self, publisher: Publisher) -> None:
        self.resends(publisher)

    def state_put_back(self, publisher: Publisher) -> None:
        """An old copy of its state is in the place of the present one, and what was not confirmed is not sent again. It
        may still be on the way, by a node of RabbitMQ that stands still."""
        opened = {one.body for one in publisher.machine.floor.open}
        self._overtaken |= opened
        self._forgotten |= opened
        for key in [one for one in self._unprocessed if one.startswith(f"{publisher.name}-")]:
            del self._unprocessed[key]

    # The broker

    def unacknowledged(self, bodies: Iterable[bytes]) -> None:
        """They were delivered and not acknowledged when a connection ended, or are on the disk of a broker that did."""
        self._may_repeat.update(bodies)

    def refused_publish(self, body: bytes) -> None:
        """A full queue of RabbitMQ has refused it, and may accept the next one: an inversion, which the publisher
        counts, unless it has one message of a key in flight at a time."""
        self._let_overtake(body)

    def _let_overtake(self, body: bytes) -> None:
        strict = (b"%s " % one.name.encode() for one in self.history.publishers if one.is_one_per_key)
        if not body.startswith(tuple(strict)):
            self._overtaken.add(body)

    def routed(self, body: bytes) -> None:
        """It is on its way to a queue of RabbitMQ, or arrives there. If that is later than a fence waits for after the
        first time, because of a change of the leader or a partition of nodes, and keys have moved meanwhile, messages
        behind it may be in another queue by then (docs/adr/0071-keys-move-between-queues.md)."""
        now, count = self.history.clock.now, self.history.spec.queue_count
        is_moving = self.history.repartitions.is_moving
        first_at, first_count, was_moving = self._routed.setdefault(body, (now, count, is_moving))
        if now - first_at > FENCE_DELAY_S and (is_moving or was_moving or count != first_count):
            self._let_overtake(body)

    def displaced(self, client: ClientEnd, channel: int, bodies: Collection[bytes], *, last_tag: int) -> None:
        """The broker has taken back deliveries of a consumer, which is not notified, or is later."""
        self.unacknowledged(bodies)
        self._displaced[client, channel] = last_tag
        for call in self._calls_on(client, channel):
            call.cut_off = True
            self._may_repeat.add(call.body)

    def store_put_back(self, bodies: Collection[bytes]) -> None:
        """An old copy of the broker's store, with these messages, is in the place of the present one."""
        self.confirmed_bodies &= self.processed | self.dead_bodies | self.discarded_bodies | set(bodies)
        self._discarded_before |= self.discarded_bodies
        self._overtaken |= self.discarded_bodies  # parked again there, behind what was processed since
        self._put_back, self._put_back_at = frozenset(bodies), self.history.clock.now
        self._unprocessed.clear()

    # Members

    def cut(self, member: Member) -> None:
        """A connection has ended, on the member's side or the broker's."""
        self._cuts += 1
        for call in self._calls_of(member):
            call.cut_off = True
            self._may_repeat.add(call.body)

    def channel_closed(self, client: ClientEnd, channel: int) -> None:
        self._displaced.pop((client, channel), None)
        for call in self._calls_on(client, channel):
            call.cut_off = True

    def taken(self, client: ClientEnd, channel: int, tags: Collection[int]) -> None:
        """The broker has given deliveries to another consumer, because the time of a handoff is over."""
        lost = frozenset(tags)
        for call in self._calls_on(client, channel):
            if call.in_flight.tag in lost:
                call.cut_off = True

    def detached(self, member: Member, attachment: Attachment) -> None:
        """A member closes a queue's channel: calls are cut off only where it does not wait any longer."""
        history = self.history
        is_late = (
            member.stopped_at is not None and history.clock.now >= member.stopped_at + history.grace_s - 0.05
        )
        if not (is_late or not member.is_app_ready):
            return
        for call in self._calls_of(member):
            if call.in_flight.attachment is attachment:
                call.cut_off = True
                self._may_repeat.add(call.body)
        self._may_repeat.update(one.delivery.body for one in attachment.ack_window.all_unacked())

    def done(self, member: Member, deliveries: Iterable[InFlight]) -> None:
        for in_flight in deliveries:
            if in_flight.outcome is None:
                self.violation(f"{member.name} has forgotten {in_flight}")

    def dead(self, body: bytes) -> None:
        self.dead_bodies.add(body)
        self._unprocessed[self._keys.get(body, "")].pop(body, None)

    # Parked keys

    def body_of(self, identity: Number) -> bytes | None:
        return self._bodies.get(identity)

    def discarded(self, identity: Number) -> None:
        """An administrator has discarded a parked message."""
        body = self._bodies.get(identity)
        if body is not None:
            self.discarded_bodies.add(body)
            _, key, _ = body.decode().split(" ")
            self._unprocessed[key].pop(body, None)

    def parked(self) -> None:
        """Judges, without further faults, that all other keys flow while some are parked."""
        parked = self.history.parkings.parked_bodies()
        if waiting := sorted(self.unfinished() - parked):
            self.violation(f"beside parked keys {len(waiting)} messages wait, as {waiting[0]!r}")

    def unfinished(self) -> set[bytes]:
        done = self.processed | self.dead_bodies | self.discarded_bodies | self._discarded_before
        return self.confirmed_bodies - done

    # The application

    def started(self, call: Call) -> None:
        history, body, key = self.history, call.body, call.key
        self.digest.update(b"%s %s %r" % (call.member.name.encode(), body, history.clock.now))
        self._judge_delivery(call.member, call.in_flight)
        wire = call.connection.wire if call.connection is not None else None
        if wire is None or not wire.is_open:
            call.cut_off = True
            self._may_repeat.add(body)
        if call.in_flight.tag <= self._displaced.get((call.connection, call.in_flight.delivery.channel), 0):
            call.cut_off = True
        for other in self._inside[key]:
            if other.member is call.member or not (other.cut_off or call.cut_off):
                self.violation(
                    f"overlap: {call.member.name} begins {body!r} while {other.member.name} has {other.body!r}"
                )
        self._inside[key].append(call)
        if body not in self._begun:
            self._begun.add(body)
            self._keys[body] = key
            # A member that stood still begins it before it sees that its connection is lost.
            opened_at = wire.opened_at if wire is not None else float("inf")
            is_of_former_store = opened_at < self._put_back_at and body not in self._put_back
            is_excused = is_of_former_store or body in self._overtaken
            if call.row < self._highest.get(key, -1) and not is_excused:
                self.violation(
                    f"inversion: {call.member.name} begins {body!r} behind row {self._highest[key]}"
                )
            self._highest[key] = max(call.row, self._highest.get(key, -1))
            for earlier, row in self._unprocessed[key].items():
                if row < call.row:
                    self.violation(
                        f"inversion: {call.member.name} begins {body!r} before {earlier!r} is processed"
                    )
            if not is_of_former_store and body not in self._forgotten:  # those may be gone for good
                self._unprocessed[key][body] = call.row
        elif body in self.processed:
            self.repeats += body not in self._sent_again
            if body not in self._may_repeat and body not in self._sent_again:
                self.violation(f"repeat: {call.member.name} begins {body!r}, which was processed")
            if history.is_verbose:
                history.note(f"{call.member.name} repeats {body.decode()}")

    def _judge_delivery(self, member: Member, in_flight: InFlight) -> None:
        number, body = in_flight.identity, in_flight.delivery.body
        if number is None or self._bodies.get(number) != body:
            self.violation(
                f"{member.name} got {body!r} as {number}, sent as {self._bodies.get(number or ('', 0, 0))!r}"
            )
        attachment = in_flight.attachment
        queue, cuts = self._begun_by.setdefault(body, (attachment.queue, self._cuts))
        if queue != attachment.queue and cuts != self._cuts:
            # Keys move, and the message is in two queues: a member that was lost took its numbers with it.
            self._may_repeat.add(body)
        window = attachment.ack_window.unacked
        if window > WINDOW_MAX:
            self.violation(f"{member.name} has {window} messages of queue {attachment.queue}")

    def finished(self, call: Call, *, is_processed: bool) -> None:
        self._inside[call.key].remove(call)
        if is_processed:
            self.processed.add(call.body)
            self._unprocessed[call.key].pop(call.body, None)

    def died(self, call: Call) -> None:
        self._inside[call.key].remove(call)
        self._may_repeat.add(call.body)

    def ends(self) -> None:
        """Judges the end, when everything has had its time."""
        lost = sorted(self.unfinished())
        if lost:
            self.violation(f"lost or not served: {len(lost)}, as {lost[0]!r}")
        for publisher in self.history.publishers:
            if not publisher.is_settled:
                self.violation(f"{publisher.name} waits for {len(publisher.machine.floor.open)} confirms")
        if len(keys := self.history.parkings.keys):
            self.violation(f"{keys.messages} messages of {len(keys)} keys are parked behind the last release")
        if not self.history.repartitions.is_over:
            self.violation("the number of queues is still being changed")

    def _calls_on(self, client: ClientEnd, channel: int) -> list[Call]:
        return [one for inside in self._inside.values() for one in inside if one.is_of(client, channel)]

    def _calls_of(self, member: Member) -> list[Call]:
        return [one for inside in self._inside.values() for one in inside if one.member is member]


class Judged(Context, Protocol):
    """The part of a history that all others have."""

    judge: Judge
