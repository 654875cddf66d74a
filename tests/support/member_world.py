"""A world without sockets or clocks: a broker's queues, members' machines and their application, in virtual time.

Delays are drawn from a seed; connections are pipes that keep order; a member has two, as in reality, so that what it
says to the group and what it does to its queues are not ordered with each other. The world watches what the
application sees and keeps score.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from lbg_broker.group import queue_of
from lbg_sidecar.balancing.rules import BalancingRules
from lbg_sidecar.consuming.consumption import Next, Rules
from lbg_sidecar.consuming.held import Attachment, Held
from lbg_sidecar.effects import (
    Abort,
    Ack,
    Attach,
    DeadLetter,
    Detach,
    Done,
    Exit,
    Kept,
    Look,
    Moved,
    Poisoned,
    Reconnect,
    Republish,
    Stalled,
    StoodDown,
    Superseded,
    TakenOver,
)
from lbg_sidecar.machine import MemberMachine
from lbg_sidecar.membership.claiming import Claiming
from lbg_sidecar.membership.messages import decode, encode
from lbg_sidecar.membership.roster import Post, Timings
from lbg_sidecar.verdict import ACK, INTERRUPTED, Verdict, drop, retry

PUBLISHER = "p"


@dataclass(eq=False)
class Item:
    """A message in a broker queue."""

    hash_: int
    key: str | None
    seq: int
    place: int  # its place in the queue, which a requeue gives back to it
    deliveries: int = 0

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


class BrokerQueue:
    """A queue with a single active consumer: the first that waits, until it goes."""

    def __init__(self) -> None:
        self.ready: deque[Item] = deque()
        self.consumers: list[Consumer] = []

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

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._requeue(consumer.unacked.values())

    def _requeue(self, items: Iterable[Item]) -> None:
        self.ready = deque(sorted([*items, *self.ready], key=lambda item: item.place))
        self.pump()


class Link:
    """One life of a member's two connections."""

    def __init__(self, world: World, member: SimMember) -> None:
        self.world = world
        self.member = member
        self.open = True  # the broker's side
        self._clear_at: dict[str, float] = defaultdict(float)

    def up(self, pipe: str, command: tuple[Any, ...]) -> None:
        self._send(f"{pipe} up", lambda: self.world.broker_does(self, pipe, command))

    def down(self, pipe: str, event: tuple[Any, ...]) -> None:
        self._send(f"{pipe} down", lambda: self.member.hears(self, event))

    def close(self) -> None:
        """In order: what was said before still arrives."""
        self.world.at(max(self._clear_at.values()), lambda: self.world.broker_drops(self))

    def _send(self, pipe: str, action: Callable[[], None]) -> None:
        at = max(self.world.now + self.world.delay(), self._clear_at[pipe])
        self._clear_at[pipe] = at
        self.world.at(at, action)


@dataclass(eq=False)
class Call:
    member: SimMember
    held: Held
    item: Item
    cut_off: bool = False  # its connection was lost, or a shutdown did not wait for it
    ended: bool = False


class SimMember:
    """The shell of one machine."""

    def __init__(self, world: World, name: str, machine: MemberMachine, *, fixed: int | None = None) -> None:
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
        self.calls: dict[Held, Call] = {}
        self._missed: list[Callable[[], None]] = []
        self._ticking = False

    @property
    def index(self) -> int | None:
        return self.machine.roster.me.index if self.machine.roster.me else None

    def connect(self) -> None:
        if not self.alive or self.stalled or self.link is not None or self.exited:
            return
        self.stood_down = False
        claiming = Claiming(previous=self.previous, fixed=self.fixed)
        while True:
            index = claiming.candidate()
            if index is None:
                self.world.at(self.world.now + 0.5, self.connect)
                return
            if index not in self.world.mailboxes:
                break
            claiming.taken(index)
        self.link = Link(self.world, self)
        self.world.mailboxes[index] = self.link
        self.previous = index
        self.machine.connected(index, self.world.now)
        self.run()
        self._tick()

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
            case ("looked", queue, ready):
                machine.looked(queue, ready, now)
            case ("deliver", attachment, batch):
                arrivals = [
                    Held(attachment, tag, key=item.key, identity=item.identity, delivery=item)
                    for tag, item in batch
                ]
                machine.deliver(attachment, arrivals, now)
            case ("confirmed", held, what):
                machine.confirmed(held, what, now)
            case ("lost",):
                self.lose("told")
                return
        self.run()

    def lose(self, why: str) -> None:
        """The member learns, or decides, that its connection is lost."""
        link, self.link = self.link, None
        if link is not None:
            self.world.broker_drops(link)
        for call in self.calls.values():
            call.cut_off = True
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
                self.world.call_starts(self, held)
                continue
            due = self.machine.flush(self.world.now)
            if not self.machine.effects:
                if due < float("inf"):
                    self.world.at(due, self._flush)
                return

    def _flush(self) -> None:
        if self.alive and not self.stalled:
            self.run()

    def _run(self, effect: Any) -> None:
        link = self.link
        match effect:
            case Abort(calls):
                for held in calls:
                    self.world.call_aborts(self.calls[held])
            case Exit():
                self.exited = True
                self._part(link)
            case StoodDown():
                self.stood_down = True
                self._part(link)
                self.machine.disconnected(self.world.now)
            case Reconnect():
                self.lose("reconnect")
            case Moved() | Kept() | TakenOver() | Poisoned() | Stalled() | Superseded():
                self.world.events.append((self.world.now, self.name, effect))
            case Done(deliveries, settled):
                for held in deliveries:
                    assert held.outcome is not None
                    self.world.done[self.name, held.number] += 1
                    self.world.settled += settled
            case _ if link is None:
                pass
            case Attach(attachment):
                link.up("queues", ("attach", attachment))
            case Detach(attachment, tag, singly):
                for call in self.calls.values():
                    if call.held.attachment is attachment:
                        call.cut_off = True
                if tag is not None:
                    link.up("queues", ("ack", attachment, tag, True))
                for single in singly:
                    link.up("queues", ("ack", attachment, single, False))
                link.up("queues", ("close", attachment))
            case Ack(attachment, tag, multiple):
                link.up("queues", ("ack", attachment, tag, multiple))
            case Look(queue):
                link.up("queues", ("look", queue))
            case Post(message, to):
                link.up("group", ("post", encode(message), to))
            case DeadLetter(held):
                link.up("group", ("publish", held, Next.DEAD_LETTER))
            case Republish(held):
                link.up("group", ("publish", held, Next.REPUBLISH))

    def _part(self, link: Link | None) -> None:
        self.link = None
        if link is not None:
            link.close()

    def _tick(self) -> None:
        if self._ticking:
            return
        self._ticking = True
        self._later()

    def _later(self) -> None:
        due = max(self.machine.next_due(self.world.now), self.world.now + 0.005)
        self.world.at(due, self._ticked)

    def _ticked(self) -> None:
        if not self.alive or self.exited:
            return
        if not self.stalled:
            self.machine.tick(self.world.now)
            self.run()
        self._later()


@dataclass
class Chances:
    """How unfriendly the world is."""

    hint_lost: float = 0.0
    retry: float = 0.0
    drop: float = 0.0
    slow: float = 0.0
    slow_s: float = 6.0
    look_fails: float = 0.0
    call_s: float = 0.01
    delay_s: float = 0.002


@dataclass
class World:
    seed: int
    queue_count: int = 4
    hash_count: int = 8
    rules: Rules = field(default_factory=lambda: Rules(concurrency=4))
    balancing: dict[str, Any] = field(default_factory=dict)
    chances: Chances = field(default_factory=Chances)
    failing: set[str | None] = field(default_factory=set)  # keys whose messages never succeed

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now = 0.0
        self.queues = [BrokerQueue() for _ in range(self.queue_count)]
        self.mailboxes: dict[int, Link] = {}
        self.members: list[SimMember] = []
        self.events: list[tuple[float, str, Any]] = []
        self.published: dict[tuple[str, int, int], Item] = {}
        self.finished: dict[tuple[str, int, int], int] = defaultdict(int)
        self.dead: dict[tuple[str, int, int], int] = defaultdict(int)
        self.started: set[tuple[str, int, int]] = set()
        self.highest: dict[str, int] = {}
        self.inside: dict[str, list[Call]] = defaultdict(list)
        self.violations: list[str] = []
        self.repeats = 0
        self.disturbed = 0  # deliveries that were unacknowledged when a connection died
        self.resent = 0  # messages that their publisher sent twice
        self.done: dict[tuple[str, int], int] = defaultdict(int)
        self.settled = 0
        self.calm = False
        self._places = 0
        self._seqs: dict[int, int] = defaultdict(int)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._n = 0

    # Time

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._n += 1
        heapq.heappush(self._heap, (when, self._n, action))

    def delay(self) -> float:
        return self.random.expovariate(1 / self.chances.delay_s)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = end

    # What happens to members

    def join(self, name: str | None = None, *, fixed: int | None = None) -> SimMember:
        name = name or f"m{len(self.members)}"
        balancing = BalancingRules(
            **{"queue_count": self.queue_count, "prefetch": 8, "client_count": 3, **self.balancing}
        )
        machine = MemberMachine(
            name,
            balancing=balancing,
            rules=self.rules,
            timings=Timings(),
            uniform=self.random.random,
            incarnation=lambda: f"{name}-{self.random.getrandbits(64):x}",
        )
        member = SimMember(self, name, machine, fixed=fixed)
        self.members.append(member)
        member.connect()
        return member

    def kill(self, member: SimMember) -> None:
        """SIGKILL: what it had written may still arrive, then the broker sees the connection close."""
        member.alive = False
        link, member.link = member.link, None
        self._cut(member)
        for call in list(member.calls.values()):
            self._leave(call)
        if link is not None:
            self.at(self.now + self.delay(), lambda: self.broker_drops(link))

    def stall(self, member: SimMember, seconds: float) -> None:
        """SIGSTOP: the broker gives up on it after 10 s without a heartbeat; its child goes on working."""
        link = member.link
        member.stalled = True
        self._cut(member)
        if link is not None:
            self.at(self.now + 10, lambda: self.broker_drops(link) if member.link is link else None)
        self.at(self.now + seconds, member.resume)

    def drop_connection(self, member: SimMember) -> None:
        """The broker closes it; the member hears of it a little later."""
        if member.link is not None:
            link = member.link
            self._cut(member)
            self.broker_drops(link)
            link.down("group", ("lost",))

    def suspect(self, queue: int) -> None:
        """See `BrokerQueue.suspect`."""
        self.disturbed += self.queues[queue].suspect()
        for member in self.members:
            for call in member.calls.values():
                call.cut_off |= self._is_taken_back(call.held)

    def _is_taken_back(self, held: Held) -> bool:
        consumer = self.queues[held.attachment.queue].find(held.attachment)
        return consumer is not None and held.tag in consumer.taken_back

    def _cut(self, member: SimMember) -> None:
        for call in member.calls.values():
            call.cut_off = True

    # The broker

    def publish(self, key: str | None, *, hash_: int | None = None) -> Item:
        if hash_ is None:
            hash_ = (
                sum(map(ord, key)) % self.hash_count
                if key is not None
                else self.random.randrange(self.hash_count)
            )
        self._places += 1
        item = Item(hash_, key, self._seqs[hash_], self._places)
        self._seqs[hash_] += 1
        self.published[item.identity] = item
        self._enqueue(item)
        return item

    def publish_again(self, item: Item) -> None:
        """A publisher that did not get its confirm sends the same message again."""
        self._places += 1
        self.resent += 1
        self._enqueue(Item(item.hash_, item.key, item.seq, self._places))

    def _enqueue(self, item: Item) -> None:
        queue = self.queues[queue_of(item.hash_, self.queue_count)]
        queue.ready.append(item)
        queue.pump()

    def broker_does(self, link: Link, pipe: str, command: tuple[Any, ...]) -> None:
        if not link.open:
            return
        match command:
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
                for known in [
                    known for known in consumer.unacked if known == tag or (multiple and known < tag)
                ]:
                    del consumer.unacked[known]
                queue.pump()
            case ("close", attachment):
                queue = self.queues[attachment.queue]
                consumer = queue.find(attachment)
                assert consumer is not None
                link.down(pipe, ("closed", attachment))
                queue.remove(consumer)
            case ("look", queue):
                failed = not self.calm and self.random.random() < self.chances.look_fails
                link.down(pipe, ("looked", queue, None if failed else len(self.queues[queue].ready)))
            case ("post", body, None):
                for mailbox in list(self.mailboxes.values()):
                    if not self._hint_is_lost():
                        mailbox.down("group", ("message", body))
            case ("post", body, to):
                if to not in self.mailboxes:
                    link.down(pipe, ("returned", body, to))
                elif not self._hint_is_lost():
                    self.mailboxes[to].down("group", ("message", body))
            case ("publish", held, what):
                if what is Next.DEAD_LETTER:
                    self.dead[held.identity] += 1
                link.down(pipe, ("confirmed", held, what))

    def broker_drops(self, link: Link) -> None:
        if not link.open:
            return
        link.open = False
        for index in [i for i, mailbox in self.mailboxes.items() if mailbox is link]:
            del self.mailboxes[index]
        for queue in self.queues:
            for consumer in [c for c in queue.consumers if c.link is link]:
                self.disturbed += len(consumer.unacked)
                queue.remove(consumer)
        if link.member.link is link and link.member.alive:
            link.down("group", ("lost",))

    def _hint_is_lost(self) -> bool:
        return not self.calm and self.random.random() < self.chances.hint_lost

    # The application

    def call_starts(self, member: SimMember, held: Held) -> None:
        item: Item = held.delivery
        # A connection may be lost before its member can know.
        is_lost = member.link is None or not member.link.open or self._is_taken_back(held)
        call = Call(member, held, item, cut_off=is_lost)
        member.calls[held] = call
        if held.first_started_at == self.now and (self.finished[item.identity] or self.dead[item.identity]):
            self.repeats += 1
        if item.key is not None:
            for other in self.inside[item.key]:
                if other.member is member or not (other.cut_off or call.cut_off):
                    self.violations.append(
                        f"{self.now:.3f} {member.name} and {other.member.name} both in {item}"
                    )
            if item.identity not in self.started and item.seq < self.highest.get(item.key, -1):
                self.violations.append(f"{self.now:.3f} inversion at {member.name}: {item}")
            self.highest[item.key] = max(item.seq, self.highest.get(item.key, -1))
            self.inside[item.key].append(call)
        self.started.add(item.identity)
        slow = self.random.random() < self.chances.slow
        seconds = self.chances.slow_s if slow else self.random.random() * 2 * self.chances.call_s
        if self.calm:
            seconds = 0.001
        self.at(self.now + seconds, lambda: self._call_ends(call, self._verdict(item)))

    def call_aborts(self, call: Call) -> None:
        self.at(self.now + self.delay(), lambda: self._call_ends(call, INTERRUPTED))

    def _call_ends(self, call: Call, verdict: Verdict) -> None:
        if call.ended:
            return
        if call.member.stalled:
            # Nobody reads what the child answers; the fence will abort the call.
            if verdict is INTERRUPTED:
                self.at(self.now + 0.1, lambda: self._call_ends(call, verdict))
            return
        if call.held.abort_reason is None and verdict is INTERRUPTED and not call.held.attachment.closed:
            return
        self._leave(call)
        member = call.member
        if not member.alive:
            return
        if verdict is ACK:
            self.finished[call.item.identity] += 1
        member.machine.end(call.held, verdict, self.now)
        member.run()

    def _leave(self, call: Call) -> None:
        call.ended = True
        call.member.calls.pop(call.held, None)
        if call.item.key is not None:
            self.inside[call.item.key].remove(call)

    def _verdict(self, item: Item) -> Verdict:
        if item.key in self.failing and not self.calm:
            return retry("it is poison")
        luck = self.random.random()
        if self.calm or luck >= self.chances.retry + self.chances.drop:
            return ACK
        return retry("not now", after_s=0.05) if luck < self.chances.retry else drop("no good")

    # The score

    def unfinished(self) -> list[Item]:
        return [
            item for name, item in self.published.items() if not self.finished[name] and not self.dead[name]
        ]

    @property
    def forced(self) -> int:
        """Calls that members cut off in shutdowns which could not wait."""
        return sum(member.machine.consumption.counts.forced for member in self.members)

    def served_by(self) -> dict[int, int | None]:
        """The index whose consumer is the active one, per queue; None for a queue without consumers."""
        return {
            number: queue.consumers[0].link.member.index if queue.consumers else None
            for number, queue in enumerate(self.queues)
        }

    def up(self) -> list[SimMember]:
        return [m for m in self.members if m.alive and not m.exited]
