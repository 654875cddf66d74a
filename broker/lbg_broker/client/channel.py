"""One channel: publishing, consuming and settling, on top of declaring."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lbg_broker.amqp import NO_PROPERTIES, AckEvent, BasicProperties, Connection, ContentEvent, Method, Table
from lbg_broker.amqp.methods import (
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
    ChannelFlow,
    ChannelFlowOk,
    ConfirmSelect,
    ConfirmSelectOk,
)
from lbg_broker.client.declaring import DeclaringChannel
from lbg_broker.client.errors import ClientError
from lbg_broker.client.messages import Delivery, GotMessage, Returned
from lbg_broker.client.requests import REQUEST_BYTES, Carrier

__all__ = ["Channel", "OnCancelled", "OnConfirm", "OnDeliveries", "OnReturn", "OnRevoked"]

OnDeliveries: TypeAlias = Callable[[list[Delivery]], None]
"""Called once per read with everything that came for the consumer, in order."""

OnCancelled: TypeAlias = Callable[[], None]
"""The broker ended the consumer: its queue is gone."""

OnRevoked: TypeAlias = Callable[[Sequence[int], bool], None]
"""Delivery tags that the broker takes back, and whether they are taken. If not, it asks: `nack` now what is not begun,
start nothing more of it, and settle the rest soon. Taken: they are another consumer's; do not settle them any more."""

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


class Channel(DeclaringChannel):
    """A channel of a `ClientConnection`; made by `open_channel`.

    `publish`, `ack`, `nack` and `reject` only add to the output, which is written at the end of the loop turn;
    `drain` of the connection waits until it may go on.
    """

    def __init__(self, carrier: Carrier, machine: Connection, number: int) -> None:
        super().__init__(carrier, machine, number)
        self.on_confirm: OnConfirm | None = None
        self.on_return: OnReturn | None = None
        self.is_confirming = False
        self.last_delivery_tag = 0
        """Of the newest message handed over, by consuming or by get."""
        self.prefetch_count = 0
        """What all consumers of this channel together may hold unacknowledged; 0: no limit."""
        self._published = 0
        self._prefetch_next = 0
        self._consumers: dict[str, _Consumer] = {}
        self._consumers_made = 0

    # Publishing

    async def confirm_select(self) -> None:
        """From now on every published message is confirmed. May be asked for again."""
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

    async def basic_qos(self, prefetch_count: int) -> None:
        """How many unacknowledged messages each consumer started from now on may hold; 0: no limit."""
        await self.call(BasicQos(0, prefetch_count, False), BasicQosOk)
        self._prefetch_next = prefetch_count

    async def limit(self, prefetch_count: int) -> None:
        """How many unacknowledged messages all consumers of this channel may hold together, those that are there, too;
        0: no limit but their own (RabbitMQ: basic.qos with global)."""
        await self.call(BasicQos(0, prefetch_count, True), BasicQosOk)

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
        """Start a consumer; returns its tag. `prefetch_count` None leaves what `basic_qos` said.

        Without `on_revoked` the embedded broker waits for what it wants back until its time for that is over, and the
        consumer's late settling of it does nothing. Cancelling it on the way closes the channel.
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
        """Say how many message groups a consumer works on at a time, as of now. Only to a broker that has
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
        """Give back (`requeue`), or drop to the queue's dead letter exchange."""
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
                super().on_method(method)

    def _on_cancelled(self, method: BasicCancel) -> None:
        consumer = self._consumers.pop(method.consumer_tag, None)
        if not method.nowait and self.is_open:
            self._machine.send(self.number, BasicCancelOk(method.consumer_tag))
        if consumer is not None and consumer.on_cancelled is not None:
            consumer.on_cancelled()

    def _on_revoked(self, method: BasicRevoke) -> None:
        """The answer says that what the callback settled came before it. A consumer that is not told does not answer,
        so that its late settling is still expected."""
        consumer = self._consumers.get(method.consumer_tag)
        if consumer is None or consumer.on_revoked is None or not self.is_open:
            return
        consumer.on_revoked(method.delivery_tags, method.taken)
        if self.is_open:
            self._machine.send(self.number, BasicRevokeOk(method.taken, method.delivery_tags))
            self._carrier.wrote(REQUEST_BYTES)
