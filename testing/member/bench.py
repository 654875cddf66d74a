"""One member's machine at a broker that answers when the test says so: nothing in it has a clock, a socket or a task.

It asserts what holds whatever is requested: no two calls of a key run at the same time, no delivery is settled twice,
no message is processed twice, and none is both processed and a dead letter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from lbg_core.group.key_moves import BarrierEntry, BeginEntry, KeyMove, PassEntry
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Peek, Skip, SkipOutcome, Skipped
from lbg_core.group.parked_keys import ParkEntry, ReleaseEntry
from lbg_core.group.sequences import MessageIdentity
from lbg_sidecar.core import effects as fx
from lbg_sidecar.core.broker_assigned import BrokerAssignedMember
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.dispatcher import Rules
from lbg_sidecar.core.exclusive import ExclusiveMember
from lbg_sidecar.core.key_moves import KeyMoves
from lbg_sidecar.core.parked_keys import Parking
from lbg_sidecar.core.queue_bindings import BalancingRules
from lbg_sidecar.message import ACK, Verdict, retry
from testing.member.bare_member import setup_of

ADMINISTRATOR = Identity(0, "administrator", "")
MOVE = KeyMove("2-3-move", 2, 3, 6)
MOVING_HASH = 2
"""In queue 0 of two, and in queue 2 of three."""

ROUNDS = 60
"""Far more than it takes to answer everything, each with a second between."""


@dataclass(eq=False)
class Published:
    key: str
    identity: MessageIdentity
    redelivered: bool = False

    @property
    def id(self) -> str:
        return "-".join(map(str, self.identity))


@dataclass
class Fate:
    """Number of times that a message was processed, or went elsewhere."""

    processed: int = 0
    dead: int = 0
    parked: int = 0
    elsewhere: int = 0
    """In another queue, or at another member."""
    is_unconfirmed: bool = False
    """Its channel was closed before its outcome was confirmed: it is delivered again."""


@dataclass
class Bench:
    """`verdict` is that of a call which nothing else ends. `has_staging`: there is a staging queue of a change."""

    rules: Rules
    is_native: bool = False
    verdict: Verdict = ACK
    has_staging: bool = True
    now: float = 0.0
    answers: list[SkipOutcome] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    sent: list[fx.Effect] = field(default_factory=list)
    """Settlements that the broker has received and not answered."""
    calls: list[InFlight] = field(default_factory=list)
    order: list[MessageIdentity] = field(default_factory=list)
    fates: defaultdict[MessageIdentity, Fate] = field(default_factory=lambda: defaultdict(Fate))

    def __post_init__(self) -> None:
        make = BrokerAssignedMember if self.is_native else ExclusiveMember
        balancing = BalancingRules(queue_count=1 if self.is_native else 2, prefetch=50)
        self.machine = make(setup_of(balancing, self.rules))
        self._waiting: list[Published] = []  # in the queue, delivered or not
        self._delivered: dict[tuple[Attachment, int], Published] = {}
        self._settled: Counter[tuple[Attachment, int]] = Counter()
        self._attachment: Attachment | None = None
        self._seqs = count()
        self.machine.connected(0, self.now)
        self.turn()

    @property
    def _key_moves(self) -> KeyMoves:
        key_moves = self.machine.part(KeyMoves)
        assert key_moves is not None
        return key_moves

    @property
    def attachment(self) -> Attachment:
        assert self._attachment is not None
        return self._attachment

    def publish(self, key: str) -> Published:
        message = Published(key, ("p", MOVING_HASH, next(self._seqs)))
        self._waiting.append(message)
        self._deliver([message])
        return message

    def _deliver(self, messages: list[Published]) -> None:
        attachment = self._attachment
        if attachment is None or not messages:
            return
        arrivals = []
        for message in messages:
            tag = attachment.delivered + len(arrivals) + 1
            self._delivered[attachment, tag] = message
            arrival = InFlight(attachment, tag, key=message.key, identity=message.identity)
            arrival.hash_ = MOVING_HASH
            arrival.redelivered = message.redelivered
            message.redelivered = True
            arrivals.append(arrival)
        self.machine.deliver(attachment, arrivals, self.now)
        self.turn()

    def released_copy(self, message: Published) -> None:
        """A copy of a parked message comes over the mailbox."""
        parking = self.machine.part(Parking)
        beside = None if parking is None else parking.beside(MOVING_HASH)
        if parking is not None and beside is not None:
            copy = InFlight(beside, beside.delivered + 1, key=message.key, identity=message.identity)
            copy.hash_ = MOVING_HASH
            parking.deliver(copy, self.now)
        self.turn()

    # The shell

    def turn(self) -> None:
        """Runs effects, takes calls and flushes acks until all is quiet."""
        machine = self.machine
        while True:
            effects, machine.effects[:] = machine.effects[:], []
            for effect in effects:
                self._run(effect)
            if effects or machine.effects:
                continue
            call = machine.take(self.now)
            if call is not None:
                assert call.key not in [one.key for one in self.calls], "two calls of a key"
                self.calls.append(call)
                continue
            machine.flush(self.now)
            if not machine.effects:
                return

    def _run(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Attach(attachment):
                if attachment.queue == 0:
                    self._attachment = attachment
                self.machine.attached(attachment, self.now)
                if attachment.queue == 0:
                    self._deliver(list(self._waiting))
            case fx.Detach(attachment, tag, singly):
                if tag is not None:
                    self._ack(attachment, tag, multiple=True)
                for one in singly:
                    self._ack(attachment, one, multiple=False)
                self.close(attachment)
            case fx.Ack(attachment, tag, multiple) if attachment.beside_of is None:
                self._ack(attachment, tag, multiple=multiple)
            case fx.Requeue(attachment, tags):
                for tag in tags:
                    self._settle(attachment, tag)
                    self.fates[self._delivered[attachment, tag].identity].elsewhere += 1
            case fx.Abort(calls) | fx.Withdraw(calls):
                for call in calls:
                    self.end(call, retry("aborted"))
            case fx.Post(Skipped(_, outcome)):
                self.answers.append(outcome)
            case fx.Show(_, _, shown):
                self.shown += [state for _, state in shown]
            case (
                fx.DeadLetter()
                | fx.Republish()
                | fx.ParkCopy()
                | fx.RecordEntry()
                | fx.RecordKeyMove()
                | fx.FindStaging()
                | fx.Forward()
            ):
                self.sent.append(effect)

    def _ack(self, attachment: Attachment, tag: int, *, multiple: bool) -> None:
        tags = [tag]
        if multiple:
            earlier = (one for of, one in self._delivered if of is attachment and one < tag)
            tags += [one for one in earlier if not self._settled[attachment, one]]
        for one in tags:
            self._settle(attachment, one)

    def _settle(self, attachment: Attachment, tag: int) -> None:
        message = self._delivered[attachment, tag]
        self._settled[attachment, tag] += 1
        assert self._settled[attachment, tag] == 1, "RabbitMQ answers 406"
        self._waiting.remove(message)

    # What happens

    def end(self, call: InFlight, verdict: Verdict) -> None:
        self.calls.remove(call)
        assert call.identity is not None
        if verdict is ACK:
            self.fates[call.identity].processed += 1
            self.order.append(call.identity)
        self.machine.end(call, verdict, self.now)
        self.turn()

    def end_calls(self, verdict: Verdict) -> None:
        for call in list(self.calls):
            self.end(call, verdict)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.machine.tick(self.now)
        self.turn()

    def answer(self) -> None:
        """The broker answers what it has got, and members read what is in their streams."""
        sent, self.sent = self.sent, []
        for effect in sent:
            match effect:
                case fx.DeadLetter(in_flight):
                    self._fate(in_flight).dead += 1
                    self.machine.confirmed(in_flight, self.now)
                case fx.Republish(in_flight):
                    self.machine.confirmed(in_flight, self.now)
                case fx.ParkCopy(in_flight):
                    self.machine.confirmed(in_flight, self.now)
                case fx.RecordEntry(entry, of):
                    if isinstance(entry, ParkEntry):
                        self.fates[entry.identity].parked += 1
                    self.machine.entries(Parking, [entry], self.now)
                    if of is not None:
                        self.machine.recorded(of, self.now)
                case fx.RecordKeyMove(entry):
                    self.machine.entries(KeyMoves, [entry], self.now)
                case fx.FindStaging(move):
                    self._key_moves.staging_found(move, self.has_staging)
                case fx.Forward(in_flight):
                    self._fate(in_flight).elsewhere += 1
                    self.machine.confirmed(in_flight, self.now)
            self.turn()

    def _fate(self, in_flight: InFlight) -> Fate:
        assert in_flight.identity is not None
        return self.fates[in_flight.identity]

    def poison(self, message: Published) -> None:
        """The attempts of a message that is called are used up."""
        for _ in range(self.rules.max_attempts):
            (call,) = [one for one in self.calls if one.identity == message.identity]
            self.end(call, retry("it is poison"))
            self.wait(self.rules.backoff.max_s)
        self.answer()

    # Requests

    def skip(self, message: Published) -> None:
        self.machine.requests.receive(Skip(ADMINISTRATOR, "a", message.id), "g", self.now)
        self.turn()

    def peek(self) -> None:
        self.machine.requests.receive(Peek(ADMINISTRATOR, "a", None, None, 9, 9), "g", self.now)
        self.turn()

    def state(self, message: Published) -> str | None:
        """As a peek shows it; None if it is not held."""
        before = len(self.shown)
        self.machine.requests.receive(Peek(ADMINISTRATOR, "a", None, message.id, 9, 9), "g", self.now)
        self.turn()
        return self.shown[before] if len(self.shown) > before else None

    def pause(self, is_paused: bool) -> None:
        self.machine.pause(is_paused, self.now)
        self.turn()

    def park(self, message: Published) -> None:
        """The stream has it that this message is parked, as by a former member."""
        self.machine.entries(
            Parking, [ParkEntry(message.key, message.identity, 1, "cause", "copy")], self.now
        )
        self.fates[message.identity].parked += 1
        self.turn()

    def release(self, key: str) -> None:
        parking = self.machine.part(Parking)
        assert parking is not None
        causes = next((one.causes for one in parking.keys.parked() if one.key == key), ())
        self.machine.entries(Parking, [ReleaseEntry(key, causes)], self.now)
        self.turn()

    def follow(self) -> None:
        """A change of the number of queues is announced."""
        self._key_moves.follow(MOVE.id)
        self.turn()

    def begin(self) -> None:
        self.machine.entries(KeyMoves, [BeginEntry(MOVE)], self.now)
        self.turn()

    def passed(self) -> None:
        """Another member served the queue meanwhile, and passed its fence."""
        self.machine.entries(
            KeyMoves, [BarrierEntry("other", (0,)), PassEntry(MOVE.id, 0, "other")], self.now
        )
        self.turn()

    def give_up_move(self) -> None:
        self.machine.absent(KeyMoves, self.now)
        self.turn()

    def close(self, attachment: Attachment | None = None) -> None:
        """A channel is gone; the member attaches again, and gets what is not settled."""
        attachment = attachment or self._attachment
        if attachment is None:
            return
        if attachment is self._attachment:
            self._attachment = None
            self._closed_before_confirm()
        self.machine.closed(attachment, self.now)
        self.turn()

    def _closed_before_confirm(self) -> None:
        for effect in self.sent:
            match effect:
                case fx.DeadLetter(in_flight) | fx.Republish(in_flight):
                    self._fate(in_flight).is_unconfirmed = True

    def revoke(self, message: Published, *, reassigned: bool) -> None:
        """The broker recalls a message, or has given it to another member."""
        tags = [
            tag
            for (attachment, tag), one in self._delivered.items()
            if one is message and attachment is self._attachment and not self._settled[attachment, tag]
        ]
        if tags and reassigned:
            for tag in tags:
                self._settle(self.attachment, tag)
            self.fates[message.identity].elsewhere += 1
            self._closed_before_confirm()
        if self._attachment is not None:
            self.machine.revoked(self._attachment, tags, self.now, reassigned=reassigned)
        self.turn()

    def finish(self, *also: Callable[[], None]) -> None:
        """Everything is answered and every call ends until nothing is left."""
        for _ in range(ROUNDS):
            self.answer()
            self.end_calls(self.verdict)
            for one in also:
                one()
            self.wait(1.0)
            if not (self.sent or self.calls or self._waiting):
                break
        assert not self._waiting, "a message without a way on"
        for identity, fate in self.fates.items():
            assert fate.processed + fate.dead <= 1 + fate.is_unconfirmed, identity
        firsts = list(dict.fromkeys(self.order))
        assert sorted(firsts, key=lambda one: one[0]) == sorted(firsts), "the order of a publisher"
