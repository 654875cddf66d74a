"""One of two brokers that are told the same story: what it answered, what it delivered, what it still holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from testing.amqp.open_pika import raw
from testing.broker.engines import Engine, close_at_once

Outcome = object
CHANNELS = 3


class Side:
    """Two connections with three channels to consume from, and one to publish and look with.

    `prefix` is put before every name, so that stories told to one broker do not meet. What is in an `unmarked` queue
    counts as never redelivered.
    """

    def __init__(
        self,
        engine: Engine,
        links: list[pika.BlockingConnection],
        prefix: str,
        *,
        unmarked: frozenset[str] = frozenset(),
    ) -> None:
        self.engine = engine
        self._unmarked = unmarked
        self.prefix = prefix
        self._links = links
        self._speaker = self._open_speaker()
        self._witness = links[1].channel()
        self._channels = [self._open_channel(index) for index in range(CHANNELS)]
        self.delivered: dict[str, list[tuple[bytes, bool]]] = {}
        """By consumer: bodies in the order they came, and whether they were marked as redelivered."""
        self.out: list[dict[bytes, int]] = [{} for _ in range(CHANNELS)]
        """By channel: what is out, unsettled: body and delivery tag."""
        self.consumers: list[dict[str, str]] = [{} for _ in range(CHANNELS)]
        """By channel: consumer tag and its queue."""
        self.queues: set[str] = set()

    # --- topology ------------------------------------------------------------------------------------------

    def declare_queue(self, queue: str, arguments: dict[str, Any]) -> Outcome:
        named = {key: self.prefix + value if key in _NAMES else value for key, value in arguments.items()}
        self.queues.add(queue)
        return self._tried(
            lambda: self._speaker.queue_declare(self.prefix + queue, arguments=named).method.message_count
        )

    def delete_queue(self, queue: str, if_unused: bool, if_empty: bool) -> Outcome:
        return self._tried(
            lambda: self._speaker.queue_delete(self.prefix + queue, if_unused, if_empty).method.message_count
        )

    def purge(self, queue: str) -> Outcome:
        return self._tried(lambda: self._speaker.queue_purge(self.prefix + queue).method.message_count)

    def declare_exchange(self, exchange: str, kind: str, alternate: str | None) -> Outcome:
        arguments = {"alternate-exchange": self.prefix + alternate} if alternate else {}
        return self._tried(
            lambda: self._speaker.exchange_declare(self.prefix + exchange, kind, arguments=arguments)
        )

    def delete_exchange(self, exchange: str, if_unused: bool) -> Outcome:
        return self._tried(lambda: self._speaker.exchange_delete(self.prefix + exchange, if_unused))

    def bind(self, queue: str, exchange: str, key: str) -> Outcome:
        return self._tried(lambda: self._speaker.queue_bind(self.prefix + queue, self.prefix + exchange, key))

    def unbind(self, queue: str, exchange: str, key: str) -> Outcome:
        return self._tried(
            lambda: self._speaker.queue_unbind(self.prefix + queue, self.prefix + exchange, key)
        )

    def forget_gone(self) -> None:
        """A deleted queue took its consumers along."""
        held = self.holds()
        for consumers in self.consumers:
            for tag, queue in list(consumers.items()):
                if held[queue] is None:
                    del consumers[tag]

    # --- messages ------------------------------------------------------------------------------------------

    def publish(self, exchange: str, key: str, body: bytes, mandatory: bool) -> Outcome:
        name, key = (self.prefix + exchange, key) if exchange else ("", self.prefix + key)
        try:
            return self._tried(lambda: self._speaker.basic_publish(name, key, body, mandatory=mandatory))
        except UnroutableError:
            return "returned"
        except NackError:
            return "refused"

    def get(self, index: int, queue: str, auto_ack: bool) -> Outcome:
        try:
            method, _, body = self._channels[index].basic_get(self.prefix + queue, auto_ack)
        except ChannelClosedByBroker as closed:
            self._replace(index)
            return closed.reply_code
        if method is None:
            return None
        if not auto_ack:
            self.out[index][body] = method.delivery_tag
        return body, self._mark(queue, method.redelivered), method.message_count

    def consume(self, index: int, queue: str, tag: str, prefetch: int) -> Outcome:
        channel = self._channels[index]
        channel.basic_qos(prefetch_count=prefetch)
        self.delivered[tag] = []

        def take(_channel: BlockingChannel, method: Any, _properties: Any, body: bytes) -> None:
            if channel is not self._channels[index]:
                return  # pika hands out what it had read before the channel was closed
            self.delivered[tag].append((body, method.redelivered))
            self.out[index][body] = method.delivery_tag

        try:
            channel.basic_consume(self.prefix + queue, take, consumer_tag=tag)
        except ChannelClosedByBroker as closed:
            self._replace(index)
            return closed.reply_code
        self.consumers[index][tag] = queue
        return None

    def cancel(self, index: int, tag: str) -> Outcome:
        self.consumers[index].pop(tag, None)
        raw(self._channels[index]).basic_cancel(tag)  # pika's own would nack what it has not handed out yet
        return None

    def settle(self, index: int, body: bytes, how: str, multiple: bool) -> Outcome:
        """Ack, requeue or drop the delivery of this body, or with `multiple` all of the channel up to it."""
        channel, tag = self._channels[index], self.out[index][body]
        if how == "ack":
            channel.basic_ack(tag, multiple)
        else:
            channel.basic_nack(tag, multiple, requeue=how == "requeue")
        for other, out in list(self.out[index].items()):
            if out == tag or (multiple and out < tag):
                del self.out[index][other]
        return None

    def close(self, index: int) -> Outcome:
        """Close the channel at once and open another in its place."""
        close_at_once(self._channels[index])
        self._replace(index)
        return None

    # --- looking -------------------------------------------------------------------------------------------

    def pump(self) -> None:
        self._witness.basic_qos()  # answered after whatever was sent before it on the second connection
        for link in self._links:
            link.process_data_events(0.001)

    def holds(self) -> dict[str, int | None]:
        """Number of ready messages in each queue of the story; None for a missing queue."""
        counts: dict[str, int | None] = {}
        for queue in sorted(self.queues):
            try:
                counts[queue] = self._speaker.queue_declare(
                    self.prefix + queue, passive=True
                ).method.message_count
            except ChannelClosedByBroker:
                counts[queue] = None
                self._speaker = self._open_speaker()
        return counts

    def end(self) -> dict[str, list[tuple[bytes, bool]]]:
        """Close every channel, read what the queues then hold, and leave nothing behind."""
        for channel in self._channels:
            close_at_once(channel)
        left = {}
        for queue in sorted(self.queues):
            found: list[tuple[bytes, bool]] = []
            try:
                while (got := self._speaker.basic_get(self.prefix + queue, auto_ack=True))[0] is not None:
                    found.append((got[2], self._mark(queue, got[0].redelivered)))
                self._speaker.queue_delete(self.prefix + queue)
            except ChannelClosedByBroker:
                self._speaker = self._open_speaker()
            left[queue] = found
        for exchange in ("x0", "x1"):
            self._speaker.exchange_delete(self.prefix + exchange)
        for channel in (self._speaker, self._witness):
            close_at_once(channel)
        return left

    # --- inside --------------------------------------------------------------------------------------------

    def _mark(self, queue: str, redelivered: bool) -> bool:
        return redelivered and queue not in self._unmarked

    def _tried(self, action: Callable[[], Any]) -> Outcome:
        try:
            result = action()
        except ChannelClosedByBroker as closed:
            self._speaker = self._open_speaker()
            return closed.reply_code
        return result if isinstance(result, int) else None

    def _replace(self, index: int) -> None:
        self.out[index].clear()
        self.consumers[index].clear()
        self._channels[index] = self._open_channel(index)

    def _open_channel(self, index: int) -> BlockingChannel:
        return self._links[index % 2].channel()

    def _open_speaker(self) -> BlockingChannel:
        speaker = self._links[0].channel()
        speaker.confirm_delivery()
        return speaker


_NAMES = ("x-dead-letter-exchange", "x-dead-letter-routing-key")
