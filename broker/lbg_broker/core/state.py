"""State of the broker, and the primitives that every command is made of.

The modules that carry out commands (`exchange_methods`, `queue_methods`, `basic_methods`, `settle`) are functions on
this state.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from lbg_broker.core.effects import Definition, Deliver, Effect, PauseReading, Send, StoreBatch
from lbg_broker.core.entities import Channel, Connection, Consumer, Queue, Vhost
from lbg_broker.core.permissions import Authority
from lbg_broker.core.spool import ATTENDED_LINES_MAX, LETTERS_BYTES, UNSETTLED_BYTES, Spool
from lbg_core.amqp import MethodEvent
from lbg_core.amqp.methods import ConnectionBlocked, ConnectionUnblocked, Method

Line = TypeVar("Line", bound=Spool)

DEFAULT_MESSAGE_GROUP: Final = "qpid.no-group"
"""The name in "Using Message Groups"."""


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    published: int = 0
    refused: int = 0
    unroutable: int = 0
    delivered: int = 0
    settled: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    expired: int = 0


@dataclass(slots=True)
class Pending:
    """Answers that wait for one batch to reach the disk."""

    confirms: dict[Channel, int] = field(default_factory=dict)
    """For each channel, the last publish in the batch: it and all before it are confirmed then."""
    letters: dict[Channel, int] = field(default_factory=dict)
    """The same of publishes that are written on a full disk too."""
    replies: list[tuple[Channel, Method | None]] = field(default_factory=list)
    """Stalled channels, and what to answer them; without an answer the command is tried again."""
    notices: list[tuple[Channel, Method]] = field(default_factory=list)
    """Ends in the batch, for channels that made no request."""
    credits: dict[Consumer, tuple[int, int]] = field(default_factory=dict)
    """For each consumer, how many deliveries it settled, and their bytes."""
    marks: list[tuple[Spool, int, int]] = field(default_factory=list)
    """Lines in the batch, the mark each has then, and the position up to which it is written."""


class State:
    """The broker's state. Time comes with each command and stands still while it is carried out."""

    def __init__(
        self,
        authority: Authority,
        *,
        new_token: Callable[[], str],
        default_group: str = DEFAULT_MESSAGE_GROUP,
    ) -> None:
        self.authority = authority
        self.new_token = new_token
        """Makes the unguessable part of names the broker gives."""
        self.default_group = default_group
        """Group of messages without one, on queues of message groups."""
        self.now = 0.0
        self.wide: set[tuple[str, str]] = set()
        """Virtual host and name of each exchange in which a single publish may take long."""
        self.vhosts: dict[str, Vhost] = {"/": Vhost("/", self.wide)}
        self.connections: dict[int, Connection] = {}
        self.counters = Counters()
        self.next_spool = 1
        self.blocked_reason: str | None = None
        self.letter_bytes_max = 0
        """While there is no room: the longest letter that the store's reserve has room for."""
        self.letters_wait = False
        """True if little is left of the reserve, so that letters wait for room as publishes do."""
        self.letters_bytes = 0  # what moves with the open batch
        self.waiting: list[Channel] = []  # channels whose next command makes a letter
        self.batch = StoreBatch(1)
        self.pending = Pending()
        self.committing: dict[int, Pending] = {}
        self.touched: list[Spool] = []
        self.due: list[Queue] = []
        self.confirming: list[Channel] = []  # channels with publishes to confirm at the end of this turn
        self.speaking: list[Connection] = []  # connections with effects not yet handed over
        self.spools: dict[int, Spool] = {}
        self.redefined: dict[Queue, None] = {}  # queues whose definition is stored with the next batch
        self.alarms: list[tuple[float, int, Queue]] = []
        self._alarm_numbers = itertools.count()
        self.laden: set[Channel] = set()  # channels that hold much of a line's unsettled messages

    # --- effects -----------------------------------------------------------------------------------------------

    def emit(self, connection: Connection, effect: Effect) -> None:
        """Have the shell carry out an effect on a connection."""
        if not connection.out:
            self.speaking.append(connection)
        connection.out.append(effect)

    def send(self, channel: Channel, method: Method) -> None:
        """Send a method on a channel."""
        self.emit(channel.connection, Send(channel.number, method))

    def reply(self, channel: Channel, method: Method, *, nowait: bool = False, durable: bool = False) -> None:
        """Answer a command. `durable`: after what it changed is on disk; the channel stands still till then."""
        if nowait:
            return
        if durable:
            self.stall(channel, method)
        else:
            self.send(channel, method)

    def notify(self, channel: Channel, method: Method) -> None:
        """Send a method when the open batch is on disk."""
        self.pending.notices.append((channel, method))

    @property
    def letters_afforded(self) -> int:
        """Bytes of messages that may still move with the open batch."""
        return LETTERS_BYTES - self.letters_bytes

    def block(self, connection: Connection) -> None:
        """Stops reading from a connection that published while the store has no room (connection.blocked)."""
        if connection.is_blocked or connection.closing:
            return
        connection.is_blocked = True
        if connection.peer.has("connection.blocked"):
            self.emit(connection, Send(0, ConnectionBlocked(self.blocked_reason or "")))
        self.emit(connection, PauseReading(True))

    def unblock(self, connection: Connection) -> None:
        """Reads again from a connection that was blocked."""
        if not connection.is_blocked or connection.closing:
            return
        connection.is_blocked = False
        if connection.peer.has("connection.blocked"):
            self.emit(connection, Send(0, ConnectionUnblocked()))
        self.emit(connection, PauseReading(False))

    def stall(self, channel: Channel, answer: Method | None) -> None:
        """Let a channel's further commands wait until the open batch is on disk."""
        channel.stalled = True
        self.pending.replies.append((channel, answer))

    def retry(self, channel: Channel, method: Method) -> None:
        """Carry out a command again after the open batch is on disk."""
        channel.backlog.appendleft(MethodEvent(channel.number, method))
        self.stall(channel, None)

    # --- store -------------------------------------------------------------------------------------------------

    def define(self, kind: str, key: str, value: str | None) -> None:
        """Keep a durable thing in the store, or (None) delete it."""
        self.batch.definitions.append(Definition(kind, key, value))

    def redefine(self, queue: Queue) -> None:
        """Have a durable queue's definition stored again with the next batch: its lines or what its policy keeps are
        different now."""
        if queue.durable:
            self.redefined[queue] = None

    def new_line(self, kind: type[Line], *, durable: bool) -> Line:
        """A new spool."""
        line = kind(self.next_spool, durable=durable, touched=self.touched)
        self.spools[line.id] = line
        self.next_spool += 1
        return line

    def add_line(self, queue: Queue, line: Spool) -> None:
        """Give a queue one line more, behind those it has."""
        line.queue = queue
        line.attended = bool(queue.policy.consumers) and len(queue.lines) < ATTENDED_LINES_MAX
        queue.lines.append(line)
        self.redefine(queue)

    def drop_line(self, queue: Queue, line: Spool) -> None:
        """Take a line with all its messages off a queue that keeps others."""
        queue.lines.remove(line)
        self.drop_spool(line)
        self.redefine(queue)

    def drop_spool(self, spool: Spool) -> None:
        """Delete a line with all its messages."""
        del self.spools[spool.id]
        spool.drop()
        self.batch.dropped.append((spool.id, spool.durable))

    # --- time --------------------------------------------------------------------------------------------------

    def wake_at(self, queue: Queue, at: float) -> None:
        """Have the queue's policy ring at this time (seconds since the epoch), or soon after."""
        heapq.heappush(self.alarms, (at, next(self._alarm_numbers), queue))

    def ring(self) -> list[Queue]:
        """Wakes the queues whose time has come; returns them."""
        if not self.alarms or self.alarms[0][0] > self.now:
            return []
        rung: dict[Queue, None] = {}
        while self.alarms and self.alarms[0][0] <= self.now:
            queue = heapq.heappop(self.alarms)[2]
            if not queue.spool.dropped:
                queue.policy.ring()
                self.make_due(queue)
                rung[queue] = None
        return list(rung)

    # --- queues ------------------------------------------------------------------------------------------------

    def make_due(self, queue: Queue) -> None:
        """Marks a queue for dispatch at the end of this command."""
        if not queue.due:
            queue.due = True
            self.due.append(queue)

    def dispatch(self) -> None:
        """Delivers what can be delivered from the queues that are due."""
        due, self.due = self.due, []
        for queue in due:
            queue.due = False
            for spool, consumer, messages, redelivered in queue.policy.dispatch():
                channel = consumer.channel
                first_tag = channel.next_tag
                count = len(messages)
                channel.next_tag = first_tag + count
                self.counters.delivered += count
                if consumer.no_ack:
                    for message in messages:
                        spool.settle(message)
                else:
                    consumer.add_unsettled(count, sum([message.size for message in messages]))
                    unsettled = channel.unsettled
                    tag = first_tag
                    for message in messages:
                        unsettled[tag] = (spool, message, consumer)
                        tag += 1
                    if spool.outstanding_bytes > UNSETTLED_BYTES:
                        self.laden.add(channel)
                self.emit(
                    channel.connection,
                    Deliver(channel.number, consumer.tag, first_tag, redelivered, messages),
                )
