"""A member: one machine, and the shell that runs its effects against the world."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.dispatcher import NextCall
from lbg_sidecar.core.effects import (
    Abort,
    Ack,
    Attach,
    AwaitWill,
    CallFailed,
    CountReady,
    DeadLetter,
    Detach,
    Done,
    Exit,
    FollowKeyMove,
    Forward,
    HandoffAbandoned,
    KeyParked,
    Moved,
    ParkCopy,
    ParkedKeysUnread,
    Poisoned,
    Reconnect,
    RecordEntry,
    RecordKeyMove,
    Republish,
    Stalled,
    StandingBy,
    StoodDown,
    Superseded,
    TakenOver,
)
from lbg_sidecar.core.exclusive import ExclusiveMember
from lbg_sidecar.core.index_claim import IndexClaim
from lbg_sidecar.core.message_codec import decode, encode
from lbg_sidecar.core.roster import Post
from testing.member.world.application import Call
from testing.member.world.broker import Link
from testing.member.world.queues import Item

if TYPE_CHECKING:
    from testing.member.world.world import World


class SimMember:
    """The shell of one machine."""

    def __init__(
        self, world: World, name: str, machine: ExclusiveMember, *, fixed: int | None = None
    ) -> None:
        self.world = world
        self.name = name
        self.machine = machine
        self.fixed = fixed
        self.link: Link | None = None
        self.previous: int | None = None
        self.alive = True
        self.stalled = False
        self.exited = False
        self.stood_down = False  # until `connect`
        self.calls: dict[InFlight, Call] = {}
        self._missed: list[Callable[[], None]] = []
        self._tick_at = float("inf")

    @property
    def index(self) -> int | None:
        return self.machine.roster.me.index if self.machine.roster.me else None

    def connect(self) -> None:
        if not self.alive or self.stalled or self.link is not None or self.exited:
            return
        self.stood_down = False
        claiming = IndexClaim(previous=self.previous, fixed=self.fixed)
        while True:
            index = claiming.candidate()
            if index is None:
                self.world.at(self.world.now + 0.5, self.connect)
                return
            if index not in self.world.broker.mailboxes:
                break
            claiming.refused(index)
        self.link = Link(self.world, self)
        self.world.broker.mailboxes[index] = self.link
        self.world.broker.links.append(self.link)
        place = self.world.broker.parked_from
        first = 0 if place is None else place.offset
        self.link.down("parked", ("parked", self.world.broker.parked_log[first:]))
        self.previous = index
        if self.machine.rules.queue_count != self.world.queue_count:
            self.machine.reshape(self.world.queue_count, self.world.now)
        if self.world.broker.key_move is not None:
            self.machine.key_moves.follow(self.world.broker.key_move.id)
        self.machine.connected(index, self.world.now)
        self.run()

    def hears(self, link: Link, event: tuple[Any, ...]) -> None:
        if not self.alive or link is not self.link:
            return
        if self.stalled:
            self._missed.append(lambda: self.hears(link, event))
            return
        now, machine = self.world.now, self.machine
        match event:
            case ("message", body):
                message = decode(body)
                assert message is not None
                machine.message(message, now)
            case ("returned", body, to):
                message = decode(body)
                assert message is not None
                machine.returned(message, to, now)
            case ("attached", attachment):
                machine.attached(attachment, now)
            case ("closed", attachment):
                machine.closed(attachment, now)
            case ("looked", queue, ready, consumers):
                machine.ready_counted(queue, ready, consumers, now)
            case ("deliver", attachment, batch):
                machine.deliver(attachment, [_in_flight(attachment, tag, item) for tag, item in batch], now)
            case ("moves", entries):
                machine.key_moves_read(entries, now)
            case ("cancelled", attachment):
                machine.cancelled(attachment)
                machine.closed(attachment, now)
            case ("confirmed", held, what):
                machine.confirmed(held, what, now)
            case ("recorded", held, entry):
                machine.recorded(held, entry, now)
            case ("released", item):
                parking = machine.dispatcher.parking
                beside = None if parking is None else parking.beside(item.hash_)
                if beside is not None:
                    tag = beside.delivered + 1
                    held = _in_flight(beside, tag, item)
                    machine.dispatcher.deliver_released(held, now)
            case ("parked", entries):
                machine.parked_read(list(link.reader.read(entries)), now)
            case ("will", index):
                machine.willed(index, now)
            case ("lost",):
                self.lose("told")
                return
        self.run()

    def cut_off(self) -> None:
        """Its calls can no longer be acknowledged, whether it knows or not."""
        for call in self.calls.values():
            call.cut_off = True

    def lose(self, why: str) -> None:
        """The member learns, or decides, that its connection is lost."""
        link, self.link = self.link, None
        if link is not None:
            self.world.broker.drops(link)
        self.cut_off()
        self.machine.disconnected(self.world.now)
        self.run()
        if not self.stood_down:
            self.world.at(self.world.now + 0.05 + self.world.delay(), self.connect)

    def resume(self) -> None:
        """SIGCONT: the fence comes first, as in the shell. What was in its buffers is of a dead connection."""
        self.stalled = False
        self._missed.clear()
        if self.alive and not self.exited:
            self.lose("stalled")

    def stop(self) -> None:
        if self.alive and not self.exited:
            self.machine.stop("SIGTERM", self.world.now)
            self.run()

    def run(self) -> None:
        """Run effects until there are none, then take calls, then flush acks; again until all is quiet."""
        while self.alive and not self.exited:
            effects, self.machine.effects[:] = self.machine.effects[:], []
            for effect in effects:
                self._run(effect)
            if self.exited or effects:
                continue
            held = self.machine.take(self.world.now)
            if held is not None:
                self.world.application.starts(self, held)
                continue
            due = self.machine.flush(self.world.now)
            if not self.machine.effects:
                if due < float("inf"):
                    self.world.at(due, self._flush)
                self._tick_soon()
                return

    def _flush(self) -> None:
        if self.alive and not self.stalled:
            self.run()

    def _run(self, effect: Any) -> None:
        link = self.link
        match effect:
            case Abort(calls):
                for held in calls:
                    self.world.application.aborts(self.calls[held])
            case Exit():
                self.exited = True
                self._part(link)
            case StoodDown():
                self.stood_down = True
                self._part(link)
                self.machine.disconnected(self.world.now)
            case Reconnect():
                self.lose("reconnect")
            case TakenOver():
                self.world.events.append((self.world.now, self.name, effect))
                self.machine.taken_over(effect)
            case (
                Moved()
                | HandoffAbandoned()
                | Poisoned()
                | KeyParked()
                | ParkedKeysUnread()
                | CallFailed()
                | Stalled()
                | Superseded()
                | StandingBy()
            ):
                self.world.events.append((self.world.now, self.name, effect))
            case Done(deliveries, _):
                assert all(held.outcome is not None for held in deliveries)
            case _ if link is None:
                pass
            case Attach(attachment):
                link.up("queues", ("attach", attachment))
            case Detach(attachment, tag, singly):
                for call in self.calls.values():
                    if attachment in (call.held.attachment, call.held.attachment.beside_of):
                        call.cut_off = True
                if tag is not None:
                    link.up("queues", ("ack", attachment, tag, True))
                for single in singly:
                    link.up("queues", ("ack", attachment, single, False))
                link.up("queues", ("close", attachment))
            case Ack(attachment) if attachment.beside_of is not None:
                pass
            case Ack(attachment, tag, multiple):
                link.up("queues", ("ack", attachment, tag, multiple))
            case AwaitWill(index):
                link.awaits = index
                self.machine.will_watched(index, self.world.now)
            case CountReady(queue):
                link.up("queues", ("look", queue))
            case Post(message, to):
                link.up("group", ("post", encode(message), to))
            case ParkCopy(held, copy):
                link.up("copies", ("copy", held, copy))
            case RecordEntry(entry, held):
                link.up("entries", ("record", entry, held))
            case FollowKeyMove(is_on):
                link.up("moves", ("follow", is_on))
            case RecordKeyMove(entry):
                link.up("entries", ("move", entry))
            case Forward(held, queue):
                link.up("copies", ("forward", held, queue))
            case DeadLetter(held):
                link.up("group", ("publish", held, NextCall.DEAD_LETTER))
            case Republish(held):
                link.up("group", ("publish", held, NextCall.REPUBLISH))

    def _part(self, link: Link | None) -> None:
        self.link = None
        if link is not None:
            link.close()

    def _tick_soon(self) -> None:
        due = max(self.machine.next_due(self.world.now), self.world.now + 0.005)
        if due < self._tick_at:
            self._tick_at = due
            self.world.at(due, lambda: self._tick(due))

    def _tick(self, due: float) -> None:
        if due != self._tick_at or not self.alive or self.exited:
            return
        self._tick_at = float("inf")
        if not self.stalled:
            self.machine.tick(self.world.now)
            self.run()
        self._tick_soon()


def _in_flight(attachment: Attachment, tag: int, item: Item) -> InFlight:
    if item.fence is not None:
        fence = InFlight(attachment, tag, delivery=item)
        fence.fence = item.fence
        return fence
    in_flight = InFlight(attachment, tag, key=item.key, identity=item.identity, delivery=item)
    in_flight.hash_ = item.hash_
    return in_flight
