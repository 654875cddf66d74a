"""The embedded broker: its core, its group commit, and what ends or stops its process."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from lbg_broker.core.commands import (
    CloseConnection,
    Command,
    Committed,
    ConnectionLost,
    ConnectionOpened,
    Paused,
    Received,
    StoreBlocked,
    Ticked,
)
from lbg_broker.core.effects import Deliver, PauseReading, Revoke, Send, SendContent, StoreBatch
from lbg_broker.core.entities import Peer
from lbg_broker.core.machine import Broker, Output
from lbg_core.amqp import AckEvent, Event, PublishEvent
from lbg_core.amqp.events import DeliverEvent
from lbg_core.amqp.methods import (
    BasicReturn,
    ConnectionClose,
    ExchangeDeclare,
    Method,
    QueueBind,
    QueueDeclare,
)
from lbg_core.group import PARTITIONED, Engine, GroupSpec, topology_of
from lbg_core.group.topology import EMBEDDED
from testing.simulation.clock import EPOCH_S, Process
from testing.simulation.disk import Disk
from testing.simulation.judge import Judged
from testing.simulation.network import SILENCE_S, ClientEnd, Connection

CAPABILITIES = dict.fromkeys(
    ("connection.blocked", "consumer_cancel_notify", "lbg.ordered_refusal", "lbg.revoke"), True
)
ADMINISTRATOR = "administrator"
"""Name of an administrator's process, and user."""

RETRY_S = 1.0
"""Between two attempts to write on a full disk (`ServerSettings`)."""

UNREAD_S = 1.0
"""Time after which a client that reads nothing has full buffers."""


class SimAuthority:
    """Everything is permitted, but to users that are no administrators publishing to the group while its ingress is
    closed."""

    def __init__(self, exchange: str) -> None:
        self.generation = 0
        self._exchange = exchange
        self._is_open = True

    def authenticate(self, user: str, password: str) -> bool:
        return True

    def can_enter(self, user: str, vhost: str) -> bool:
        return True

    def can(self, user: str, vhost: str, permission: str, name: str) -> bool:
        return self._is_open or permission != "write" or name != self._exchange or user == ADMINISTRATOR

    def ingress(self, is_open: bool) -> None:
        self._is_open = is_open
        self.generation += 1


def ack_event(channel: int, tag: int, *, multiple: bool) -> AckEvent:
    event = AckEvent.__new__(AckEvent)
    event.channel = channel
    event.delivery_tag, event.multiple = tag, multiple
    return event


def publish_event(
    channel: int, exchange: str, key: str, *, header: bytes, body: bytes, mandatory: bool
) -> PublishEvent:
    event = PublishEvent.__new__(PublishEvent)
    event.channel = channel
    event.exchange, event.routing_key = exchange, key
    event.mandatory, event.immediate = mandatory, False
    event.header, event.body = header, body
    return event


class EmbeddedBroker:
    """`process` is None while it is down."""

    engine = Engine(EMBEDDED, (1, 0, 0))
    refuses_in_order = True
    process_type = Process
    connection_type = Connection

    def __init__(self, history: Judged, spec: GroupSpec) -> None:
        self.history = history
        self.disk = Disk()
        self.authority = SimAuthority(f"lbg.{spec.name}")
        self.process = self.process_type("broker")
        self._connections: dict[int, Connection] = {}
        self._waiting: dict[int, list[Event]] = {}
        """Events of connections that are not read from."""
        self._numbers = itertools.count(1)
        self._tokens = itertools.count(1)
        self._are_moved = spec.mode == PARTITIONED
        self._bodies: dict[tuple[int, int, int], bytes] = {}
        """Of messages that may move to another consumer: by connection, channel and delivery tag."""
        self.is_up = False
        self.commit_s = 0.002
        self._parked = history.names.parked if history.setting.has_parking else ""
        self.start()
        self._declare(spec)

    # Its process

    def start(self) -> None:
        if self.is_up:
            return
        self.process = self.process_type("broker")
        self.core = Broker(
            self.authority, new_token=lambda: f"t{next(self._tokens)}", stored=self.disk.load()
        )
        if self._parked:
            self.history.parkings.restored(self.disk.bodies_of(self._parked))
        self._in_flight: StoreBatch | None = None
        self._trial_due = False
        self._tick_at = float("inf")
        self.is_up = True

    def crash(self, *, written: bool) -> None:
        """kill -9. `written`: the batch in flight reached the disk, though nobody was informed."""
        if not self.is_up:
            return
        if written and self._in_flight is not None:
            self.disk.write(self._in_flight)
        self._end()

    def lose_power(self) -> int:
        """The batch in flight is written and not synced. Returns the number of batches that are lost."""
        if not self.is_up:
            return 0
        if self._in_flight is not None:
            self.disk.write(self._in_flight)
        self._end()
        return self.disk.lose_power(self.history.random)

    def stop(self) -> None:
        """In order: connections are closed, and the last batch is written."""
        if not self.is_up:
            return
        if self._in_flight is not None:
            batch, self._in_flight = self._in_flight, None
            self._written(batch)
        for number in list(self.core.state.connections):
            self.core.apply(ConnectionLost(number), self._wall)
        for _ in range(5):
            is_full = self.core.state.blocked_reason is not None
            final = self.core.seal(final=True, on_reserve=is_full)
            if final is None:
                break
            pages = self.disk.write(final)
            if pages is None:
                break
            self.disk.sync()
            self.core.apply(Committed(final.number, pages, self.disk.is_low), self._wall)
        self._end()

    def _end(self) -> None:
        self.is_up = False
        self.process.alive = False
        for connection in list(self._connections.values()):
            self._judged(connection)
            connection.close()
        self._connections.clear()
        self._waiting.clear()

    def freeze(self, seconds: float) -> None:
        """SIGSTOP: clients close their connections when it is silent for too long."""
        clock = self.history.clock
        self.process.frozen_until = max(self.process.frozen_until, clock.now + seconds)
        if seconds > SILENCE_S:
            for connection in list(self._connections.values()):
                clock.after(SILENCE_S, connection.client.process, connection.client_lost, "no heartbeat")

    def calm(self) -> None:
        """The end of all faults."""
        self.disk.is_full = False
        self.commit_s = 0.002
        self.start()

    def restore(self, disk: Disk) -> None:
        """A backup is put back."""
        self.disk = disk

    # Connections

    def connect(self, client: ClientEnd, name: str) -> Connection | None:
        """None while it refuses connections."""
        if not self.is_up or self.process.frozen_until > self.history.clock.now:
            return None
        connection = self.connection_type(self.history, next(self._numbers), client, self)
        self._connections[connection.number] = connection
        peer = Peer(name, client_properties={"capabilities": CAPABILITIES})
        self._apply(ConnectionOpened(connection.number, name, "/", peer))
        return connection

    def hear(self, connection: Connection, events: Sequence[Event]) -> None:
        if self._waiting and (waiting := self._waiting.get(connection.number)) is not None:
            waiting += events
            return
        self._apply(Received(connection.number, events))

    def answers(self, connection: Connection) -> bool:
        """True if a read of the group's record is answered."""
        return self.is_up and connection.is_open

    def lost(self, connection: Connection) -> None:
        self._connections.pop(connection.number, None)
        self._judged(connection)
        self._waiting.pop(connection.number, None)
        if self.is_up:
            self._apply(ConnectionLost(connection.number))

    def _judged(self, connection: Connection) -> None:
        """Unacknowledged messages of the connection may be repeated from now on."""
        history = self.history
        member = history.member_of(connection.client)
        if member is not None:
            history.judge.cut(member)
        if self.is_up and (known := self.core.state.connections.get(connection.number)) is not None:
            history.judge.unacknowledged(
                message.body
                for channel in known.channels.values()
                for _, message, _ in channel.unsettled.values()
            )

    def unread(self, connection: Connection, is_unread: bool) -> None:
        """The client has stopped reading, or reads again."""
        if self.is_up and connection.is_open:
            self._apply(Paused(connection.number, is_unread))

    def close_connections(self, reason: str) -> None:
        if self.is_up:
            for connection in self._connections.values():
                self._judged(connection)  # acks may be lost on the way
            self._apply(CloseConnection(None, reason))

    # The core

    @property
    def _wall(self) -> float:
        return EPOCH_S + self.history.clock.now

    def _declare(self, spec: GroupSpec) -> None:
        topology = topology_of(spec, self.engine, has_parking=self.history.setting.has_parking)
        methods: list[Method] = [
            *(
                ExchangeDeclare(one.name, one.type, durable=True, arguments=dict(one.arguments))
                for one in topology.exchanges
            ),
            *(QueueDeclare(one.name, durable=True, arguments=dict(one.arguments)) for one in topology.queues),
            *(QueueBind(one.queue, one.exchange, one.routing_key) for one in topology.bindings),
        ]
        for method in methods:
            self.administer(method)

    def administer(self, method: Method) -> Method:
        answer, output = self.core.administer("admin", "/", method, self._wall)
        self._carry(output)
        self._commit()
        return answer

    def act(self, queue: str, action: str, **arguments: Any) -> None:
        _, output = self.core.act("admin", "/", queue, action, arguments, self._wall)
        self._carry(output)
        self._commit()

    @property
    def has_uncommitted(self) -> bool:
        return self._in_flight is not None or self.core.has_changes

    def described(self) -> list[tuple[str, int, int, dict[str, Any]]]:
        """Each durable queue with its counts, and the fields of its type."""
        return [
            (one.name, one.messages_ready, one.messages_unacknowledged, dict(one.policy.describe()))
            for one in self.core.state.vhosts["/"].queues.values()
            if one.durable
        ]

    def consumers(self, queue: str) -> int:
        return len(self.core.state.vhosts["/"].queues[queue].policy.consumers)

    def has_queue(self, name: str) -> bool:
        return name in self.core.state.vhosts["/"].queues

    def depths(self) -> dict[str, tuple[int, int]]:
        """Ready and unacknowledged messages of each durable queue."""
        found = {}
        for queue in self.core.state.vhosts["/"].queues.values():
            if queue.durable:
                found[queue.name] = (queue.messages_ready, queue.messages_unacknowledged)
        return found

    def _apply(self, command: Command) -> None:
        core, clock = self.core, self.history.clock
        output = core.apply(command, EPOCH_S + clock.now)
        if output:
            self._carry(output)
        if self._in_flight is None and core.has_changes:
            self._commit()
        alarm = core.next_alarm
        if alarm is not None and alarm - EPOCH_S < self._tick_at:
            self._tick_at = max(alarm - EPOCH_S, clock.now)
            clock.at(self._tick_at, self.process, self._tick)

    def _tick(self) -> None:
        self._tick_at = float("inf")
        self._apply(Ticked())

    def _commit(self) -> None:
        if self._in_flight is not None:
            return
        if self.core.state.blocked_reason is None:
            batch = self.core.seal()
        else:
            batch = self.core.seal(on_reserve=not self._trial_due, trial=self._trial_due)
            self._trial_due = False
        if batch is None:
            return
        self._in_flight = batch
        if not batch.writes:
            self.history.clock.after(0.0, self.process, self._finish, batch)
            return
        seconds = self.commit_s * (0.5 + self.history.random.random())
        self.history.clock.after(seconds, self.process, self._finish, batch)

    def _finish(self, batch: StoreBatch) -> None:
        self._in_flight = None
        self._written(batch)
        if self._in_flight is None and self.core.has_changes:
            self._commit()

    def _written(self, batch: StoreBatch) -> None:
        pages = self.disk.write(batch)
        if pages is not None:
            self.disk.sync()
            if self._parked:
                self._append_entries(batch)
            if self.core.state.blocked_reason is not None and not batch.on_reserve:
                self._carry(self.core.apply(StoreBlocked(None), self._wall))
            self._carry(self.core.apply(Committed(batch.number, pages, self.disk.is_low), self._wall))
        elif batch.on_reserve:
            self._in_flight = batch
            self.history.clock.after(RETRY_S, self.process, self._finish, batch)
        else:
            self._carry(self.core.apply(StoreBlocked("low on disk", batch, 4096), self._wall))
            self.history.clock.after(RETRY_S, self.process, self._try_again)

    def _append_entries(self, batch: StoreBatch) -> None:
        for change in batch.spools:
            for message in change.inserts:
                if message.origin.exchange == self._parked:
                    self.history.parkings.appended(message.body)

    def _try_again(self) -> None:
        self._trial_due = True
        self._commit()

    def _carry(self, output: Output) -> None:
        for number, effects in output:
            connection = self._connections.get(number)
            if connection is None:
                continue
            for effect in effects:
                if type(effect) is Deliver:
                    events = deliveries(effect)
                    if self._are_moved:
                        self._bodies.update(
                            ((number, one.channel, one.delivery_tag), one.body) for one in events
                        )
                    connection.tell(events)
                elif type(effect) is Send:
                    connection.tell((effect.channel, effect.method))
                    if type(effect.method) is ConnectionClose:
                        self._judged(connection)
                        connection.close()
                        self._connections.pop(number, None)
                        self._waiting.pop(number, None)
                elif type(effect) is SendContent:
                    if isinstance(effect.method, BasicReturn):
                        connection.tell((effect.channel, effect.method, effect.body))
                elif type(effect) is Revoke:
                    if effect.taken:
                        # Their acks may be on the way, or lost on it.
                        places = [(number, effect.channel, tag) for tag in effect.delivery_tags]
                        self.history.judge.unacknowledged(self._bodies[one] for one in places)
                        self.history.judge.taken(connection.client, effect.channel, effect.delivery_tags)
                    connection.tell(effect)
                elif type(effect) is PauseReading:
                    if effect.is_paused:
                        self._waiting.setdefault(number, [])
                    else:
                        for event in self._waiting.pop(number, []):
                            self.history.clock.after(0.0, self.process, self._late, connection, (event,))

    def _late(self, connection: Connection, events: Sequence[Event]) -> None:
        if connection.is_open:
            self.hear(connection, events)


def deliveries(effect: Deliver) -> list[DeliverEvent]:
    """As they are on the wire: what becomes of a message in the broker later does not show."""
    found = []
    tag = effect.first_tag
    fresh_from = tag + effect.redelivered
    for message in effect.messages:
        event = DeliverEvent.__new__(DeliverEvent)
        event.channel = effect.channel
        event.consumer_tag = effect.consumer_tag
        event.delivery_tag, event.redelivered = tag, tag < fresh_from
        event.exchange, event.routing_key = message.origin.exchange, message.origin.routing_key
        event.header, event.body = message.header, message.body
        found.append(event)
        tag += 1
    return found
