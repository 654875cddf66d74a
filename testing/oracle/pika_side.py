"""A broker that a history is played on, behind pika: what it answers, what it delivers, what it holds."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from testing.amqp.open_pika import OpenConnection, raw
from testing.broker.engines import Engine, close_at_once, drain
from testing.oracle.histories import CHANNELS, Deliveries, is_marked

_NAMES = ("x-dead-letter-exchange", "x-dead-letter-routing-key")


class PikaSide:
    """Two connections with three channels to consume from, and one to publish and look with.

    A prefix is before every name, so that histories on one broker do not meet.
    """

    def __init__(self, links: list[OpenConnection]) -> None:
        self._prefix = f"s{secrets.token_hex(4)}."
        self._links = links
        self._speaker = self._open_speaker()
        self._witness = links[1].channel()
        self._channels = [self._open_channel(index) for index in range(CHANNELS)]
        self._out: list[dict[tuple[str, str], int]] = [{} for _ in range(CHANNELS)]
        """By channel: the delivery tags of what is unsettled, by queue and body."""
        self._queues: set[str] = set()
        self.delivered: Deliveries = {}

    @classmethod
    @contextmanager
    def on(cls, engine: Engine) -> Iterator[Self]:
        """A side on an engine, for one history."""
        with engine.connected() as first, engine.connected() as second:
            yield cls([first, second])

    # --- topology ------------------------------------------------------------------------------------------

    def declare_queue(self, queue: str, arguments: dict[str, Any]) -> object:
        named = {key: self._prefix + value if key in _NAMES else value for key, value in arguments.items()}
        self._queues.add(queue)
        return self._tried(
            lambda: self._speaker.queue_declare(self._prefix + queue, arguments=named).method.message_count
        )

    def delete_queue(self, queue: str, if_unused: bool, if_empty: bool) -> object:
        return self._tried(
            lambda: self._speaker.queue_delete(self._prefix + queue, if_unused, if_empty).method.message_count
        )

    def purge(self, queue: str) -> object:
        return self._tried(lambda: self._speaker.queue_purge(self._prefix + queue).method.message_count)

    def declare_exchange(self, exchange: str, kind: str) -> object:
        return self._tried(lambda: self._speaker.exchange_declare(self._prefix + exchange, kind))

    def delete_exchange(self, exchange: str, if_unused: bool) -> object:
        return self._tried(lambda: self._speaker.exchange_delete(self._prefix + exchange, if_unused))

    def bind(self, queue: str, exchange: str, key: str) -> object:
        return self._tried(
            lambda: self._speaker.queue_bind(self._prefix + queue, self._prefix + exchange, key)
        )

    def unbind(self, queue: str, exchange: str, key: str) -> object:
        return self._tried(
            lambda: self._speaker.queue_unbind(self._prefix + queue, self._prefix + exchange, key)
        )

    def route(self, patterns: list[str], keys: list[str]) -> list[list[int]]:
        """By pattern of a topic exchange: the places of the keys that it matches."""
        name = f"{self._prefix}routes"
        self._speaker.exchange_declare(name, "topic")
        queues = [f"{name}.{index}" for index in range(len(patterns))]
        for queue, pattern in zip(queues, patterns, strict=True):
            self._speaker.queue_declare(queue)
            self._speaker.queue_bind(queue, name, pattern)
        for place, key in enumerate(keys):
            self._speaker.basic_publish(name, key, b"%d" % place)
        found = [[int(body) for body in drain(self._speaker, queue)] for queue in queues]
        for queue in queues:
            self._speaker.queue_delete(queue)
        self._speaker.exchange_delete(name)
        return found

    # --- messages ------------------------------------------------------------------------------------------

    def publish(self, exchange: str, key: str, body: str, mandatory: bool) -> object:
        name, key = (self._prefix + exchange, key) if exchange else ("", self._prefix + key)
        try:
            return self._tried(
                lambda: self._speaker.basic_publish(name, key, body.encode(), mandatory=mandatory)
            )
        except UnroutableError:
            return "returned"
        except NackError:
            return "refused"

    def get(self, index: int, queue: str, auto_ack: bool) -> object:
        try:
            method, _, body = self._channels[index].basic_get(self._prefix + queue, auto_ack)
        except ChannelClosedByBroker as closed:
            self._replace(index)
            return closed.reply_code
        if method is None:
            return None
        if not auto_ack:
            self._out[index][queue, body.decode()] = method.delivery_tag
        return [body.decode(), is_marked(queue, method.redelivered), method.message_count]

    def consume(self, index: int, queue: str, tag: str, prefetch: int) -> object:
        channel = self._channels[index]
        channel.basic_qos(prefetch_count=prefetch)

        def take(_channel: BlockingChannel, method: Any, _properties: Any, body: bytes) -> None:
            if channel is not self._channels[index]:
                return  # pika hands out what it had read before the channel was closed
            self.delivered.setdefault(tag, []).append([body.decode(), method.redelivered])
            self._out[index][queue, body.decode()] = method.delivery_tag

        try:
            channel.basic_consume(self._prefix + queue, take, consumer_tag=tag)
        except ChannelClosedByBroker as closed:
            self._replace(index)
            return closed.reply_code
        return None

    def cancel(self, index: int, tag: str) -> None:
        raw(self._channels[index]).basic_cancel(tag)  # pika's own would nack what it has not handed out yet

    def settle(self, index: int, queue: str, body: str, how: str, multiple: bool) -> None:
        """Ack, requeue or drop the delivery, or with `multiple` all of the channel up to it."""
        channel, tag = self._channels[index], self._out[index][queue, body]
        if how == "ack":
            channel.basic_ack(tag, multiple)
        else:
            channel.basic_nack(tag, multiple, requeue=how == "requeue")
        for other, out in list(self._out[index].items()):
            if out == tag or (multiple and out < tag):
                del self._out[index][other]

    def close(self, index: int) -> None:
        """Close the channel at once and open another in its place."""
        close_at_once(self._channels[index])
        self._replace(index)

    # --- looking -------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Take in what has been delivered by now."""
        self._witness.basic_qos()  # answered after whatever was sent before it on the second connection
        for link in self._links:
            link.process_data_events(0.001)

    def holds(self) -> dict[str, int | None]:
        """Number of ready messages in each queue of the history; None for a missing queue."""
        counts: dict[str, int | None] = {}
        for queue in sorted(self._queues):
            try:
                counts[queue] = self._speaker.queue_declare(
                    self._prefix + queue, passive=True
                ).method.message_count
            except ChannelClosedByBroker:
                counts[queue] = None
                self._speaker = self._open_speaker()
        return counts

    def end(self) -> dict[str, list[list[Any]]]:
        """Close every channel, read what the queues then hold, and leave nothing behind."""
        for channel in self._channels:
            close_at_once(channel)
        left = {}
        for queue in sorted(self._queues):
            found: list[list[Any]] = []
            try:
                while (got := self._speaker.basic_get(self._prefix + queue, auto_ack=True))[0] is not None:
                    found.append([got[2].decode(), is_marked(queue, got[0].redelivered)])
                self._speaker.queue_delete(self._prefix + queue)
            except ChannelClosedByBroker:
                self._speaker = self._open_speaker()
            left[queue] = found
        for exchange in ("x0", "x1"):
            self._speaker.exchange_delete(self._prefix + exchange)
        return left

    # --- inside --------------------------------------------------------------------------------------------

    def _tried(self, action: Callable[[], Any]) -> object:
        try:
            result = action()
        except ChannelClosedByBroker as closed:
            self._speaker = self._open_speaker()
            return closed.reply_code
        return result if isinstance(result, int) else None

    def _replace(self, index: int) -> None:
        self._out[index].clear()
        self._channels[index] = self._open_channel(index)

    def _open_channel(self, index: int) -> BlockingChannel:
        return self._links[index % 2].channel()

    def _open_speaker(self) -> BlockingChannel:
        speaker = self._links[0].channel()
        speaker.confirm_delivery()
        return speaker
