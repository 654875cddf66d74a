"""The broker's core without sockets, files or time: clients talk to it by method, a store of dictionaries answers.

A step of the disk is a call: `world.commit()` carries out what changed, `world.crash()` forgets what did not.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from lbg_broker.core.commands import (
    Command,
    Committed,
    ConnectionLost,
    ConnectionOpened,
    Paused,
    Received,
    Ticked,
)
from lbg_broker.core.effects import (
    Definition,
    Deliver,
    Effect,
    Page,
    Revoke,
    Send,
    SendContent,
    SpoolRecord,
    StoreBatch,
    StoredState,
)
from lbg_broker.core.entities import Peer, Queue
from lbg_broker.core.machine import Broker, Output
from lbg_broker.core.permissions import Authority, Open
from lbg_core.amqp import AckEvent, BasicProperties, Event, MethodEvent, PublishEvent
from lbg_core.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicReturn,
    BasicRevoke,
    ChannelClose,
    ChannelOpen,
    ConfirmSelect,
    ConnectionClose,
    Method,
    QueueDeclare,
    QueueDeclareOk,
)

M = TypeVar("M", bound=Method)
EMPTY_HEADER = b"\x00\x00"


class MemoryStore:
    """Stand-in for `Store`, with dictionaries."""

    def __init__(self) -> None:
        self.definitions: dict[tuple[str, str], str] = {}
        self.records: dict[int, SpoolRecord] = {}
        self.rows: dict[tuple[int, bool], dict[int, tuple[bytes, bytes, bytes]]] = defaultdict(dict)

    def carry_out(self, batch: StoreBatch) -> list[Page]:
        for definition in batch.definitions:
            if definition.value is None:
                self.definitions.pop((definition.kind, definition.key), None)
            else:
                self.definitions[definition.kind, definition.key] = definition.value
        for change in batch.spools:
            rows = self.rows[change.spool, change.durable]
            for message in change.inserts:
                assert message.position not in rows
                rows[message.position] = (message.origin.wire, message.header, message.body)
            for first, last in change.deletes:
                for position in [position for position in rows if first <= position <= last]:
                    del rows[position]
            if change.record is not None:
                self.records[change.spool] = change.record
        for spool, durable in batch.dropped:
            self.rows.pop((spool, durable), None)
            self.records.pop(spool, None)
        return [self._read(request) for request in batch.pages]

    def _read(self, request: Any) -> Page:
        rows = self.rows[request.spool, request.durable]
        found = sorted(position for position in rows if request.first <= position < request.upto)
        if request.positions:
            found = [position for position in found if position in request.positions]
        taken, size = [], 0
        for position in found[: request.messages_max]:
            origin, header, body = rows[position]
            taken.append((position, origin, header, b"" if request.headers_only else body))
            size += len(rows[position][1]) + len(rows[position][2])
            if size >= request.bytes_max:
                break
        end = request.upto if len(taken) == len(found) else taken[-1][0] + 1
        return Page(request, taken, end)

    def load(self) -> StoredState:
        for spool, durable in list(self.rows):
            if not durable:
                del self.rows[spool, durable]
        definitions = [
            Definition(kind, key, value) for (kind, key), value in sorted(self.definitions.items())
        ]
        return StoredState(definitions, [self._record(spool) for spool in sorted(self.records)])

    def _record(self, spool: int) -> SpoolRecord:
        return replace(self.records[spool], first=min(self.rows[spool, True], default=None))

    def bodies(self, spool: int, *, durable: bool = True) -> list[bytes]:
        """The bodies of a line's rows, in order."""
        rows = self.rows[spool, durable]
        return [rows[position][2] for position in sorted(rows)]


@dataclass
class Delivery:
    """One basic.deliver (or get-ok, with an empty consumer tag) as a client sees it."""

    channel: int
    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    header: bytes
    body: bytes

    @property
    def headers(self) -> dict[str, Any]:
        return dict(BasicProperties.decode(self.header).headers or {})


@dataclass
class Client:
    """One connection's end: speaks, and keeps what it hears."""

    world: World
    number: int
    methods: list[tuple[int, Method]] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    returns: list[tuple[BasicReturn, bytes]] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def hear(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):  # on its way now: what becomes of a message later does not show
                effect = replace(effect, messages=[copy(message) for message in effect.messages])
            self.effects.append(effect)
            match effect:
                case Send(channel, method):
                    self.methods.append((channel, method))
                case Revoke(channel, tag, taken, tags, is_supported=True):
                    self.methods.append((channel, BasicRevoke(tag, taken, tuple(tags))))
                case SendContent(channel, BasicGetOk() as got, header, body):
                    self.methods.append((channel, got))
                    self.deliveries.append(
                        Delivery(
                            channel,
                            "",
                            got.delivery_tag,
                            got.redelivered,
                            got.exchange,
                            got.routing_key,
                            header,
                            body,
                        )
                    )
                case SendContent(_, BasicReturn() as returned, _, body):
                    self.returns.append((returned, body))
                case Deliver():
                    for index, message in enumerate(effect.messages):
                        self.deliveries.append(
                            Delivery(
                                effect.channel,
                                effect.consumer_tag,
                                effect.first_tag + index,
                                index < effect.redelivered,
                                message.origin.exchange,
                                message.origin.routing_key,
                                message.header,
                                message.body,
                            )
                        )

    def tell(self, *events: Event) -> None:
        self.world.apply(Received(self.number, events))

    def say(self, method: Method, channel: int = 1) -> Client:
        """Send a method."""
        if isinstance(method, BasicAck):
            event = AckEvent.__new__(AckEvent)
            event.channel = channel
            event.delivery_tag, event.multiple = method.delivery_tag, method.multiple
            self.tell(event)
        else:
            self.tell(MethodEvent(channel, method))
        return self

    def ask(self, method: Method, answer: type[M], channel: int = 1) -> M:
        """Send a method and have everything it waits for done; the answer it got."""
        heard = len(self.methods)
        self.say(method, channel)
        self.world.commit()
        found = [
            said for number, said in self.methods[heard:] if number == channel and isinstance(said, answer)
        ]
        assert found, f"{method} was answered with {self.methods[heard:]}"
        return found[0]

    def publish(
        self,
        *bodies: bytes,
        key: str = "q",
        exchange: str = "",
        channel: int = 1,
        header: bytes = EMPTY_HEADER,
        mandatory: bool = False,
    ) -> None:
        """Publish bodies, as one read brings them."""
        self.tell(
            *(
                publish_event(channel, exchange, key, header=header, body=body, mandatory=mandatory)
                for body in bodies
            )
        )

    def queue(self, name: str = "q", **settings: Any) -> QueueDeclareOk:
        settings.setdefault("durable", True)
        return self.ask(QueueDeclare(name, **settings), QueueDeclareOk)

    def say_declare(self, arguments: dict[str, Any], name: str = "q") -> None:
        """Ask for a durable queue, which may be refused."""
        self.say(QueueDeclare(name, durable=True, arguments=arguments))

    def consume(
        self, queue: str = "q", *, tag: str = "c", channel: int = 1, prefetch: int = 0, **settings: Any
    ) -> None:
        self.say(BasicQos(0, prefetch, False), channel)
        self.say(BasicConsume(queue, tag, **settings), channel)

    def ack(self, delivery_tag: int, *, multiple: bool = False, channel: int = 1) -> None:
        self.say(BasicAck(delivery_tag, multiple), channel)

    def nack(
        self, delivery_tag: int, *, multiple: bool = False, requeue: bool = True, channel: int = 1
    ) -> None:
        self.say(BasicNack(delivery_tag, multiple, requeue), channel)

    def cancel(self, tag: str = "c", *, channel: int = 1) -> None:
        self.say(BasicCancel(tag), channel)

    def confirms(self, channel: int = 1) -> Client:
        return self.say(ConfirmSelect(), channel)

    def open(self, channel: int) -> Client:
        return self.say(ChannelOpen(), channel)

    def close(self, channel: int = 1) -> None:
        self.say(ChannelClose(200, "", 0, 0), channel)

    def lose(self) -> None:
        """The socket is gone."""
        self.world.apply(ConnectionLost(self.number))

    def pause(self, paused: bool = True) -> None:
        self.world.apply(Paused(self.number, paused))

    def take(self) -> list[Delivery]:
        """The deliveries since the last call."""
        taken, self.deliveries = self.deliveries, []
        return taken

    def bodies(self) -> list[bytes]:
        """The bodies delivered since the last call."""
        return [delivery.body for delivery in self.take()]

    def said(self, kind: type[M], channel: int = 1) -> list[M]:
        """Every method of a kind it was ever sent on the channel."""
        return [said for number, said in self.methods if number == channel and isinstance(said, kind)]

    @property
    def refusal(self) -> tuple[int, str] | None:
        """Code and text of the last close it got."""
        closes = [said for _, said in self.methods if isinstance(said, ChannelClose | ConnectionClose)]
        return (closes[-1].reply_code, closes[-1].reply_text) if closes else None


class World:
    """A core, its store and its clients."""

    def __init__(self, authority: Authority | None = None) -> None:
        self.authority = authority or Open()
        self.store = MemoryStore()
        self.now = 1_700_000_000.0
        self._tokens = itertools.count(1)
        self._numbers = itertools.count(1)
        self.clients: dict[int, Client] = {}
        self.sealed: StoreBatch | None = None
        self._start()

    def _start(self) -> None:
        self.broker = Broker(
            self.authority, new_token=lambda: f"{next(self._tokens)}", stored=self.store.load()
        )

    def apply(self, command: Command) -> None:
        self._hear(self.broker.apply(command, self.now))

    def administer(self, method: Method, user: str = "admin") -> Method:
        answer, output = self.broker.administer(user, "/", method, self.now)
        self._hear(output)
        return answer

    def pass_time(self, seconds: float) -> None:
        """The clock moves, and whoever waits for it is woken when it is time."""
        end = self.now + seconds
        while (at := self.broker.next_alarm) is not None and at <= end:
            self.now = max(self.now, at)
            self.apply(Ticked())
        self.now = end
        self.apply(Ticked())

    def act(self, action: str, queue: str = "q", **arguments: Any) -> Mapping[str, Any]:
        """An action of the management API on a queue, on disk when this returns."""
        answer, output = self.broker.act("admin", "/", queue, action, arguments, self.now)
        self._hear(output)
        self.commit()
        return answer

    def _hear(self, output: Output) -> None:
        for number, effects in output:
            self.clients[number].hear(effects)

    def client(self, *, user: str = "guest", **capabilities: bool) -> Client:
        """A new connection with channel 1 open. Capabilities have their dots as double underscores."""
        number = next(self._numbers)
        client = self.clients[number] = Client(self, number)
        offered = {name.replace("__", "."): there for name, there in capabilities.items()}
        offered.setdefault("consumer_cancel_notify", True)
        peer = Peer(f"client {number}", client_properties={"capabilities": offered})
        self.apply(ConnectionOpened(number, user, "/", peer))
        return client.open(1)

    def seal(self) -> bool:
        """Hand what changed to the store; False if there was nothing or it is busy."""
        if self.sealed is None:
            self.sealed = self.broker.seal()
            return self.sealed is not None
        return False

    def finish(self) -> bool:
        """The store has written what it was handed."""
        if self.sealed is None:
            return False
        batch, self.sealed = self.sealed, None
        self.apply(Committed(batch.number, self.store.carry_out(batch)))
        return True

    def commit(self) -> None:
        """Let the disk catch up, until nothing waits for it."""
        while self.finish() or self.seal():
            pass

    def crash(self, *, written: bool = False) -> None:
        """The process dies. `written`: the batch in flight reached the disk, though nobody heard of it."""
        if written and self.sealed is not None:
            self.store.carry_out(self.sealed)
        self.sealed = None
        self.clients.clear()
        self._start()

    def stop(self) -> None:
        """An orderly stop, and a new start."""
        for client in list(self.clients.values()):
            client.lose()
        self.commit()
        batch = self.broker.seal(final=True)
        if batch is not None:
            self.store.carry_out(batch)
        self.crash()

    def queue(self, name: str = "q") -> Queue:
        return self.broker.state.vhosts["/"].queues[name]


def publish_event(
    channel: int, exchange: str, key: str, *, header: bytes, body: bytes, mandatory: bool = False
) -> PublishEvent:
    """basic.publish as the wire hands it over."""
    event = PublishEvent.__new__(PublishEvent)
    event.channel = channel
    event.exchange, event.routing_key = exchange, key
    event.mandatory, event.immediate = mandatory, False
    event.header, event.body = header, body
    return event


def numbered(count: int, *, size: int = 0, start: int = 0) -> Iterator[bytes]:
    """`count` different bodies in order, each at least `size` bytes long."""
    return (
        b"%d" % index if not size else b"%d" % index + b"." * size for index in range(start, start + count)
    )
