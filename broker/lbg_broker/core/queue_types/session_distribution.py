"""Sessions queue: each message to one session for ever, with the next number of it.

A message goes to the next session in turn that has room: at once when it comes, or from the pool when room is made. It
is delivered when its session is in the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from lbg_broker.core.arguments import (
    COMMITTED,
    SESSION,
    ArgumentReader,
    SessionRequest,
    read_session_request,
)
from lbg_broker.core.effects import SpoolRecord
from lbg_broker.core.entities import Channel, Consumer, DispatchPolicy, Share
from lbg_broker.core.errors import ChannelRefusal
from lbg_broker.core.message import Origin
from lbg_broker.core.queue_types.session_headers import EPOCH, end_of_session, epoch_entry, numbered
from lbg_broker.core.queue_types.sessions import PoolSpool, Session, SessionRegistry, SessionSpool
from lbg_broker.core.spool import Spool
from lbg_core.amqp import ReplyCode
from lbg_core.amqp.methods import BasicCancel

if TYPE_CHECKING:
    from lbg_broker.core.arguments import QueueArguments
    from lbg_broker.core.entities import Queue
    from lbg_broker.core.state import State


def described(registry: SessionRegistry, *, closed: bool, pool: int) -> Mapping[str, Any]:
    """The fields beyond a plain queue's. `pool`: how many messages have no session yet."""
    lowest = _lowest_unacked(registry)
    return {"closed": closed, "pool": pool, "sessions": [_session(session, lowest) for session in registry]}


def _session(session: Session, lowest: Mapping[Spool, int]) -> dict[str, Any]:
    line = session.line
    return {
        "session": session.name,
        "state": session.state,
        "consumer_tag": session.consumer.tag if session.consumer is not None else None,
        "last_sequence": line.next_position,
        "acknowledged": min(line.acknowledged, lowest.get(line, line.next_position)),
        "messages": line.ready + line.outstanding,
        "away_since": session.away_since,
    }


def _lowest_unacked(registry: SessionRegistry) -> dict[Spool, int]:
    """For each spool with unsettled messages, the lowest position: the first of its channel, unless some were requeued
    and delivered again. So the search in a channel is short, however many it has."""
    lines_of: dict[Channel, set[SessionSpool]] = {}
    for session in registry:
        if session.line.outstanding:
            assert session.channel is not None
            lines_of.setdefault(session.channel, set()).add(session.line)
    lowest: dict[Spool, int] = {}
    for channel, lines in lines_of.items():
        in_order = not any(line.shuffled for line in lines)
        missing: set[Spool] = set(lines)
        for line, message, _ in channel.unsettled.values():
            if lowest.setdefault(line, message.position) > message.position:
                lowest[line] = message.position
            missing.discard(line)
            if in_order and not missing:
                break
    return lowest


class SessionRouter(DispatchPolicy):
    """The policy of a sessions queue. `closed`: it takes no more messages, and every session ends when the pool is
    empty."""

    supports_get = False

    def __init__(self, state: State, queue: Queue, registry: SessionRegistry, *, closed: bool) -> None:
        super().__init__()
        assert isinstance(queue.spool, PoolSpool)
        self._state = state
        self._queue = queue
        self._pool = queue.spool
        self.sessions = registry
        self._live: dict[Consumer, Session] = {}
        self.turn: deque[Session] = deque()  # with room, the next one first
        self._over: dict[Session, None] = {}
        self._last = Origin.of("", queue.name)
        self.closed = queue.shut = closed
        queue.append = self.append
        if any(session.away_since is None for session in registry):
            state.wake_at(queue, 0.0)
        for session in registry:
            if session.ending:
                self._watch(session)

    # --- consumers ---------------------------------------------------------------------------------------------

    def admit(self, consumer: Consumer, arguments: ArgumentReader) -> None:
        requested = read_session_request(arguments, where=self._queue.where)
        if consumer.no_ack:
            raise ChannelRefusal(
                ReplyCode.PRECONDITION_FAILED,
                f"{self._queue.where} needs acknowledgements of its sessions: consume without no-ack",
            )
        self.sessions.check(requested, self._life)

    def add(self, consumer: Consumer) -> None:
        super().add(consumer)
        name, committed = consumer.arguments[SESSION], consumer.arguments.get(COMMITTED)
        epoch = consumer.arguments.get(EPOCH)
        assert isinstance(name, str)
        assert isinstance(committed, int | None)
        assert isinstance(epoch, str | None)
        committed = self.sessions.position(SessionRequest(name, committed, epoch), self._life)
        session = self.sessions.get(name) or self._begin(name)
        session.attach(consumer)
        self._live[consumer] = session
        if committed is not None and committed > session.line.acknowledged:
            session.line.settle_through(committed)
        self._state.redefine(self._queue)
        self._watch(session)

    def remove(self, consumer: Consumer) -> None:
        super().remove(consumer)
        session = self._live.pop(consumer)
        if session in self.turn:
            self.turn.remove(session)
        session.detach(self._state.now)
        if not session.ending:
            session.line.on_settled = None
        self._state.redefine(self._queue)

    def _begin(self, name: str) -> Session:
        line = self._state.new_line(SessionSpool, durable=self._queue.durable)
        self._state.add_line(self._queue, line)
        return self.sessions.begin(name, line)

    # --- messages ----------------------------------------------------------------------------------------------

    def append(self, origin: Origin, header: bytes, body: bytes) -> None:
        """Put a message at the end: of the next session's line, or of the pool."""
        turn = self.turn
        # What a session's line has is written on a full disk too, so then a publish is not to get there.
        if turn and not self._pool.ready and self._state.blocked_reason is None:
            session = turn[0]
            line = session.line
            self._enter(session)
            line.append(origin, numbered(header, line.next_position + 1, self._epoch), body)
            if line.ready + line.outstanding < session.room:
                turn.rotate(-1)
            else:
                turn.popleft()
                self._watch(session)
        else:
            self._pool.append(origin, header, body)

    def dispatch(self) -> Iterator[Share]:
        if self._pool.dropped:
            return
        for session in self._over:
            self._end(session)
        self._over.clear()
        if self._pool.ready:
            self._distribute()
        if self.closed and not self._pool.ready:
            for session in self.sessions:
                self._conclude(session)
        for session in self._live.values():
            line, consumer = session.line, session.consumer
            assert consumer is not None
            while line.is_due and (credit := consumer.credit()):
                messages, redelivered = line.take(credit, consumer.credit_bytes())
                if not messages:
                    break
                yield line, consumer, messages, redelivered

    def _distribute(self) -> None:
        """Move messages from the pool to those in turn."""
        turn = self.turn
        while turn and self._pool.ready:
            round_ = [(session, session.line) for session in turn]
            room = min([session.room - line.ready - line.outstanding for session, line in round_])
            is_blocked = self._state.blocked_reason is not None
            afforded = self._state.letters_afforded if is_blocked else None
            if afforded is not None and afforded <= 0:
                return
            messages = self._pool.withdraw(room * len(round_), bytes_max=afforded)
            if not messages:
                return
            if afforded is not None:
                self._state.letters_bytes += max(sum([message.size for message in messages]), 1)
            for index, (session, line) in enumerate(round_):
                self._enter(session)
                sequence = line.next_position
                for message in messages[index :: len(round_)]:
                    sequence += 1
                    line.append(message.origin, numbered(message.header, sequence, self._epoch), message.body)
            turn.rotate(-len(messages))
            for session, _ in round_:
                if not session.has_room:
                    turn.remove(session)
                    self._watch(session)

    def _enter(self, session: Session) -> None:
        """The next number is of this life of the queue: kept in the batch that gives it."""
        if session.enter(self._life):
            self._state.redefine(self._queue)

    @cached_property
    def _life(self) -> str:
        """Epoch of the numbers that are given now: of this queue, which may be made anew under its name, in this run of
        the broker. No other has it, nor a copy of the store."""
        return self._state.new_token()

    @cached_property
    def _epoch(self) -> bytes:
        return epoch_entry(self._life)

    def _watch(self, session: Session) -> None:
        """Adds a session to the round, or watches for its room or its end."""
        if session.has_room:
            session.line.on_settled = None
            self.turn.append(session)
        else:
            session.line.on_settled = partial(self._settled, session)
            self._settled(session)

    def _settled(self, session: Session) -> None:
        """A message of a session was settled that has no room, or is at its end."""
        if session.is_over:
            session.line.on_settled = None
            self._over[session] = None
        elif session.has_room:
            self._watch(session)
        else:
            return
        self._state.make_due(self._queue)

    # --- ends --------------------------------------------------------------------------------------------------

    def _conclude(self, session: Session) -> None:
        """Put the End-of-Session behind everything that a session was given; it is given no more."""
        if session.ending:
            return
        session.ending = True
        if session in self.turn:
            self.turn.remove(session)
        line = session.line
        self._enter(session)
        line.append(self._last, end_of_session(line.next_position + 1, self._epoch), b"")
        self._watch(session)
        self._state.redefine(self._queue)

    def _end(self, session: Session) -> None:
        """A session is over: its name is free, and its consumer gets basic.cancel as soon as no crash can undo it."""
        consumer = session.consumer
        if consumer is not None:
            channel = consumer.channel
            del channel.consumers[consumer.tag]
            self.remove(consumer)
            if channel.connection.cancel_notify:
                self._state.notify(channel, BasicCancel(consumer.tag, True))
        self.sessions.end(session)
        self._state.drop_line(self._queue, session.line)
        self._queue.attend()

    def perform(self, action: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if action == "close":
            self.closed = self._queue.shut = True
            self._state.redefine(self._queue)
        elif action == "close-session":
            name = arguments.get("session")
            session = self.sessions.get(name) if isinstance(name, str) else None
            if session is None:
                raise ChannelRefusal(ReplyCode.NOT_FOUND, f"no session '{name}' in {self._queue.where}")
            self._conclude(session)
        else:
            return super().perform(action, arguments)
        return self.describe()

    # --- what is known of it -----------------------------------------------------------------------------------

    def ring(self) -> None:
        """The broker started: sessions that had a consumer then are away from now on."""
        for session in self.sessions:
            if session.away_since is None and session.consumer is None:
                session.away_since = self._state.now
        self._state.redefine(self._queue)

    def describe(self) -> Mapping[str, Any]:
        return described(self.sessions, closed=self.closed, pool=self._pool.ready)

    def stored_state(self) -> Mapping[str, Any]:
        return {"closed": self.closed, "sessions": [session.stored_state() for session in self.sessions]}


class SessionsType:
    """«Achieving Exactly-Once Message Delivery Guarantees with Sequence Numbers» as a queue."""

    def new_lines(self, state: State, rules: QueueArguments, *, durable: bool) -> list[Spool]:
        return [state.new_line(PoolSpool, durable=durable)]

    def restored_lines(
        self,
        state: State,
        rules: QueueArguments,
        records: Sequence[SpoolRecord],
        stored: Mapping[str, Any],
    ) -> list[Spool]:
        pool, *sessions = records
        return [
            PoolSpool.restored(pool, touched=state.touched),
            *(SessionSpool.restored(record, touched=state.touched) for record in sessions),
        ]

    def policy(self, state: State, queue: Queue, stored: Mapping[str, Any]) -> DispatchPolicy:
        registry = SessionRegistry.restored(queue.where, stored.get("sessions", ()), queue.lines[1:])
        return SessionRouter(state, queue, registry, closed=stored.get("closed", False))
