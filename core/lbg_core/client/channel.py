"""One channel: requests, declarations, publishing, consuming and settling."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from lbg_core.amqp import (
    NO_PROPERTIES,
    AckEvent,
    BasicProperties,
    ChannelFault,
    ChannelState,
    Connection,
    ContentEvent,
    Method,
    Table,
)
from lbg_core.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicCapacity,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicReject,
    BasicRevoke,
    BasicRevokeOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)
from lbg_core.client.errors import ChannelClosed, ClientError, channel_closed
from lbg_core.client.messages import Delivery, GotMessage, Returned

REQUEST_BYTES = 128  # what a request adds to the output, roughly: only used to decide when to write

_AnswerT = TypeVar("_AnswerT")


class Transport(Protocol):
    """The connection, as its channels see it."""

    def wrote(self, size_bytes: int) -> None: ...
    def before_writing(self, callback: Callable[[], None]) -> None: ...
    async def drain(self) -> None: ...
    def check_open(self) -> None: ...
    def release(self, number: int) -> None: ...


OnDeliveries: TypeAlias = Callable[[list[Delivery]], None]
"""Called once per read with everything that came for the consumer, in order."""

OnCancelled: TypeAlias = Callable[[], None]
"""The broker ended the consumer: its queue is gone."""

OnRevoked: TypeAlias = Callable[[Sequence[int], bool], None]
"""Revoked delivery tags, and whether they are taken. If not, the broker recalls them: `nack` now what has not begun,
start none of them, and settle the rest soon. Taken: another consumer has them; do not settle them any more."""

OnConfirm: TypeAlias = Callable[[int, bool, bool], None]
"""Delivery tag, whether it stands for all up to it, whether the broker took them."""

OnReturn: TypeAlias = Callable[[Returned], None]

MESSAGE_OVERHEAD_BYTES = 100  # frames and names around a body, roughly: only used to decide when to write
ACK_FRAME_BYTES = 21
CAPACITY_FRAME_BYTES = 17 + 255


@dataclass(frozen=True, slots=True)
class _Consumer:
    on_deliveries: OnDeliveries
    on_cancelled: OnCancelled | None
    on_revoked: OnRevoked | None


class Channel:
    """A channel of a `ClientConnection`; made by `open_channel`.

    `publish`, `ack`, `nack` and `reject` only add to the output, which is written at the end of the loop turn;
    `drain` of the connection waits until it may go on.
    """

    def __init__(self, carrier: Transport, machine: Connection, number: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._carrier = carrier
        self._machine = machine
        self.number = number
        self.is_open = False
        self.closed: asyncio.Future[ClientError | None] = self._loop.create_future()
        self._waiters: deque[tuple[tuple[type, ...], asyncio.Future[object]]] = deque()
        self._reason: ClientError | None = None
        self.on_confirm: OnConfirm | None = None
        self.on_return: OnReturn | None = None
        self.is_confirming = False
        self.last_delivery_tag = 0
        """Of the newest message handed over, by consuming or by get."""
        self.prefetch_count = 0
        """Limit of unacknowledged messages of all consumers of this channel together; 0: no limit."""
        self._published = 0
        self._prefetch_next = 0
        self._consumers: dict[str, _Consumer] = {}
        self._consumers_made = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.number} {'open' if self.is_open else 'closed'}>"

    async def open(self) -> None:
        """Open it. Called once, by the connection."""
        try:
            await self._request(ChannelOpen(), ChannelOpenOk)
        except asyncio.CancelledError:
            self.is_open = self._machine.channel_state(self.number) in (
                ChannelState.OPENING,
                ChannelState.OPEN,
            )
            self.close_soon()
            raise

    def close_soon(self) -> None:
        """Send channel.close, at the end of this loop turn; from now on the channel is closed to us.

        It goes out directly, never after a basic.cancel: the broker then puts what was delivered and not
        acknowledged back at the head of the queue before another consumer gets anything. Later deliveries are
        dropped.
        """
        if self.is_open:
            self.is_open = False
            self._machine.send(self.number, ChannelClose(200, "goodbye"))
            self._carrier.wrote(REQUEST_BYTES)

    async def close(self) -> None:
        """`close_soon`, and await the broker's answer. Never raises."""
        self.close_soon()
        if not self.closed.done():
            await asyncio.shield(self.closed)

    async def drain(self) -> None:
        """As the connection's `drain`. Raises `ChannelClosed` or `ConnectionLost`."""
        self.check_open()
        await self._carrier.drain()
        self.check_open()

    def before_writing(self, callback: Callable[[], None]) -> None:
        """Call once at the end of this loop turn, before its output is written in one piece."""
        self._carrier.before_writing(callback)

    def check_open(self) -> None:
        """Raises why the channel is closed, if it is."""
        if not self.is_open:
            raise self.why_closed()

    async def call(self, request: Method, answer: type[_AnswerT]) -> _AnswerT:
        """Send a request and await its answer. Raises `ChannelClosed` or `ConnectionLost`."""
        self.check_open()
        return await self._request(request, answer)

    async def _request(self, request: Method, *answers: type[_AnswerT]) -> _AnswerT:
        self._carrier.check_open()
        self._machine.send(self.number, request)
        self._carrier.wrote(REQUEST_BYTES)
        waiter: asyncio.Future[object] = self._loop.create_future()
        self._waiters.append((answers, waiter))
        answer = await waiter
        assert isinstance(answer, answers)
        return answer

    def _answer(self, answer: object) -> None:
        if self._waiters and isinstance(answer, self._waiters[0][0]):
            _, waiter = self._waiters.popleft()
            if not waiter.done():  # the caller may have been cancelled
                waiter.set_result(answer)

    def _on_answer(self, method: Method) -> None:
        """A method from the broker."""
        match method:
            case ChannelClose():
                self._machine.send(self.number, ChannelCloseOk())
                self._carrier.wrote(REQUEST_BYTES)
                self._finish(channel_closed(method.reply_code, method.reply_text))
            case ChannelCloseOk():
                self._finish(None)
            case ChannelOpenOk():
                self.is_open = True
                self._answer(method)
            case _:
                self._answer(method)

    def on_fault(self, fault: ChannelFault) -> None:
        """The broker broke the protocol on this channel. The machine has closed it and awaits the answer."""
        self._end(channel_closed(fault.reply_code, fault.reply_text))

    def on_connection_lost(self, reason: ClientError) -> None:
        """The connection is gone, or closed by us."""
        self._end(reason)

    def why_closed(self) -> ClientError:
        """The error that a use of the closed channel raises."""
        return self._reason or ChannelClosed(200, "closed by us")

    def _finish(self, reason: ClientError | None) -> None:
        self._carrier.release(self.number)
        self._end(reason)

    def _end(self, reason: ClientError | None) -> None:
        if self.closed.done():
            return
        self.is_open = False
        self._reason = reason
        self.closed.set_result(reason)
        waiters, self._waiters = self._waiters, deque()
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(self.why_closed())

    async def exchange_declare(
        self,
        name: str,
        type: str = "direct",
        *,
        durable: bool = False,
        passive: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table | None = None,
    ) -> None:
        flags = {"passive": passive, "durable": durable, "auto_delete": auto_delete, "internal": internal}
        await self.call(ExchangeDeclare(name, type, **flags, arguments=arguments or {}), ExchangeDeclareOk)

    async def exchange_delete(self, name: str, *, if_unused: bool = False) -> None:
        await self.call(ExchangeDelete(name, if_unused), ExchangeDeleteOk)

    async def exchange_bind(
        self, destination: str, source: str, routing_key: str = "", *, arguments: Table | None = None
    ) -> None:
        request = ExchangeBind(destination, source, routing_key, arguments=arguments or {})
        await self.call(request, ExchangeBindOk)

    async def exchange_unbind(
        self, destination: str, source: str, routing_key: str = "", *, arguments: Table | None = None
    ) -> None:
        request = ExchangeUnbind(destination, source, routing_key, arguments=arguments or {})
        await self.call(request, ExchangeUnbindOk)

    async def queue_declare(
        self,
        name: str = "",
        *,
        durable: bool = False,
        passive: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Table | None = None,
    ) -> QueueDeclareOk:
        """The answer holds the queue's name (the broker makes one for ``""``), messages and consumers."""
        flags = {"passive": passive, "durable": durable, "exclusive": exclusive, "auto_delete": auto_delete}
        return await self.call(QueueDeclare(name, **flags, arguments=arguments or {}), QueueDeclareOk)

    async def queue_bind(
        self, queue: str, exchange: str, routing_key: str = "", *, arguments: Table | None = None
    ) -> None:
        await self.call(QueueBind(queue, exchange, routing_key, arguments=arguments or {}), QueueBindOk)

    async def queue_unbind(
        self, queue: str, exchange: str, routing_key: str = "", *, arguments: Table | None = None
    ) -> None:
        await self.call(QueueUnbind(queue, exchange, routing_key, arguments or {}), QueueUnbindOk)

    async def queue_purge(self, name: str) -> int:
        """Returns how many messages are gone."""
        return (await self.call(QueuePurge(name), QueuePurgeOk)).message_count

    async def queue_delete(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Returns how many messages went with it."""
        return (await self.call(QueueDelete(name, if_unused, if_empty), QueueDeleteOk)).message_count

    # Publishing

    async def confirm_select(self) -> None:
        """Confirms every message that is published from now on. May be repeated."""
        await self.call(ConfirmSelect(), ConfirmSelectOk)
        self.is_confirming = True

    def renew_confirms(self) -> None:
        """confirm.select again without waiting for an answer, in order with what is published around it.

        Changes nothing on RabbitMQ. On a broker with ordered refusal it opens, for this channel, the queues that
        refused one of its messages.
        """
        self.check_open()
        self._machine.send(self.number, ConfirmSelect(nowait=True))
        self._carrier.wrote(REQUEST_BYTES)

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        *,
        properties: BasicProperties | None = None,
        header: bytes | None = None,
        mandatory: bool = False,
    ) -> int:
        """Publish; returns the delivery tag its confirm will carry, 0 without confirms.

        `header` is encoded properties, for a caller who made them before. Raises `ChannelClosed`,
        `ConnectionLost`, or `amqp.EncodeError` when a name or a property does not fit.
        """
        if not self.is_open:
            raise self.why_closed()
        if header is None:
            header = NO_PROPERTIES if properties is None else properties.encode()
        self._machine.publish(self.number, exchange, routing_key, header, body, mandatory=mandatory)
        self._carrier.wrote(len(body) + len(header) + MESSAGE_OVERHEAD_BYTES)
        if not self.is_confirming:
            return 0
        self._published += 1
        return self._published

    # Consuming

    async def basic_qos(self, prefetch_count: int, *, prefetch_bytes: int = 0) -> None:
        """Limits the unacknowledged messages, and their bytes, of each consumer that starts from now on; 0: no limit.

        `prefetch_bytes` only to a broker that has `lbg.prefetch_size`: any other closes the connection.
        """
        await self.call(BasicQos(prefetch_bytes, prefetch_count, False), BasicQosOk)
        self._prefetch_next = prefetch_count

    async def limit(self, prefetch_count: int, *, prefetch_bytes: int = 0) -> None:
        """Limits the unacknowledged messages of all consumers of this channel together, also of those that are there;
        0: no limit but their own (RabbitMQ: basic.qos with global). `prefetch_bytes` as of `basic_qos`."""
        await self.call(BasicQos(prefetch_bytes, prefetch_count, True), BasicQosOk)

    async def consume(
        self,
        queue: str,
        on_deliveries: OnDeliveries,
        *,
        prefetch_count: int | None = None,
        consumer_tag: str = "",
        exclusive: bool = False,
        no_ack: bool = False,
        arguments: Table | None = None,
        on_cancelled: OnCancelled | None = None,
        on_revoked: OnRevoked | None = None,
    ) -> str:
        """Start a consumer; returns its tag. `prefetch_count` None uses that of `basic_qos`.

        Without `on_revoked` the embedded broker waits for recalled deliveries until the handoff time ends, and the
        consumer's late settling of them has no effect. Cancelling it on the way closes the channel.
        """
        if prefetch_count is not None:
            await self.basic_qos(prefetch_count)
        self._consumers_made += 1
        tag = consumer_tag or f"lbg.{self.number}.{self._consumers_made}"
        if tag in self._consumers:
            raise ClientError(f"consumer tag {tag!r} is in use on this channel")
        request = BasicConsume(queue, tag, False, no_ack, exclusive, False, arguments or {})
        # Deliveries may come in the same read as the answer: the consumer is there before it.
        self._consumers[tag] = _Consumer(on_deliveries, on_cancelled, on_revoked)
        try:
            await self.call(request, BasicConsumeOk)
        except BaseException as error:
            self._consumers.pop(tag, None)
            if isinstance(error, asyncio.CancelledError):
                self.close_soon()  # the consumer may exist and hold messages: only this gives them back in order
            raise
        self.prefetch_count += self._prefetch_next
        return tag

    def capacity(self, consumer_tag: str, groups: int) -> None:
        """Reports how many message groups a consumer works on at a time, as of now. Only to a broker that has
        `lbg.capacity`: any other closes the connection."""
        self.check_open()
        self._machine.send(self.number, BasicCapacity(consumer_tag, groups))
        self._carrier.wrote(CAPACITY_FRAME_BYTES)

    async def cancel(self, consumer_tag: str) -> None:
        """Stop a consumer; what it holds stays unacknowledged. To hand a queue over in order, `close` instead."""
        await self.call(BasicCancel(consumer_tag), BasicCancelOk)
        self._consumers.pop(consumer_tag, None)

    async def basic_get(self, queue: str, *, no_ack: bool = False) -> GotMessage | None:
        """One message, or None when the queue has none to give."""
        self.check_open()
        answer = await self._request(BasicGet(queue, no_ack), GotMessage, BasicGetEmpty)
        return answer if isinstance(answer, GotMessage) else None

    # Settling

    def ack(self, delivery_tag: int, multiple: bool = False) -> None:
        """Acknowledge; `multiple`: and everything before. Raises when the channel is closed."""
        if not self.is_open:
            raise self.why_closed()
        self._machine.ack(self.number, delivery_tag, multiple=multiple)
        self._carrier.wrote(ACK_FRAME_BYTES)

    def nack(self, delivery_tag: int, multiple: bool = False, requeue: bool = True) -> None:
        """Refuses a delivery: `requeue`, or drop to the queue's dead letter exchange."""
        self._settle(BasicNack(delivery_tag, multiple, requeue))

    def reject(self, delivery_tag: int, requeue: bool = True) -> None:
        """As `nack`, for one message."""
        self._settle(BasicReject(delivery_tag, requeue))

    def _settle(self, method: Method) -> None:
        self.check_open()
        self._machine.send(self.number, method)
        self._carrier.wrote(ACK_FRAME_BYTES)

    # From the connection

    def on_batch(self, consumer_tag: str, deliveries: list[Delivery]) -> None:
        """Deliveries of one consumer."""
        consumer = self._consumers.get(consumer_tag)
        if self.is_open and consumer is not None:
            self.last_delivery_tag = deliveries[-1].delivery_tag
            consumer.on_deliveries(deliveries)

    def on_ack_event(self, event: AckEvent) -> None:
        """A confirm."""
        if self.on_confirm is not None and self.is_open:
            self.on_confirm(event.delivery_tag, event.multiple, True)

    def on_content(self, event: ContentEvent) -> None:
        """A returned message, or the answer of get."""
        if not self.is_open:
            return
        if event.method.NAME == "basic.return":
            if self.on_return is not None:
                self.on_return(Returned.of(event))
        else:
            got = GotMessage.of(event)
            self.last_delivery_tag = got.delivery_tag
            self._answer(got)

    def on_method(self, method: Method) -> None:
        """Any other method."""
        match method:
            case BasicAck() | BasicNack():
                if self.on_confirm is not None and self.is_open:
                    self.on_confirm(method.delivery_tag, method.multiple, isinstance(method, BasicAck))
            case BasicCancel():
                self._on_cancelled(method)
            case BasicRevoke():
                self._on_revoked(method)
            case ChannelFlow():
                if self.is_open:
                    self._machine.send(self.number, ChannelFlowOk(method.active))
            case _:
                self._on_answer(method)

    def _on_cancelled(self, method: BasicCancel) -> None:
        consumer = self._consumers.pop(method.consumer_tag, None)
        if not method.nowait and self.is_open:
            self._machine.send(self.number, BasicCancelOk(method.consumer_tag))
        if consumer is not None and consumer.on_cancelled is not None:
            consumer.on_cancelled()

    def _on_revoked(self, method: BasicRevoke) -> None:
        """Answers after the callback, so that what it settled is sent before. A consumer without a callback does not
        answer, so that its late settling is still expected."""
        consumer = self._consumers.get(method.consumer_tag)
        if consumer is None or consumer.on_revoked is None or not self.is_open:
            return
        consumer.on_revoked(method.delivery_tags, method.taken)
        if self.is_open:
            self._machine.send(self.number, BasicRevokeOk(method.taken, method.delivery_tags))
            self._carrier.wrote(REQUEST_BYTES)
