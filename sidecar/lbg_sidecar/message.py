"""A message as the application sees it."""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import Any

from lbg_broker.client import Delivery

from .consuming.held import Attachment, Held, Identity
from .stamp import content_type_of, session_epoch_of, session_stamp_of, stamp_of
from .tracing import trace_of


class Message:
    """One message, as a handler gets it. What is read of it is decoded when it is asked for."""

    __slots__ = ("_group", "held")

    def __init__(self, held: Held, group: str) -> None:
        self.held = held
        self._group = group

    @property
    def id(self) -> str:
        """The same for every delivery of the same message: publisher, hash and sequence."""
        identity = self.held.identity
        if identity is None:
            return f"{self._group}-q{self.queue}-{self.held.attachment.epoch}-{self.held.tag}"
        return f"{identity[0]}-{identity[1]}-{identity[2]}"

    @property
    def group(self) -> str:
        """Its group's name."""
        return self._group

    @property
    def queue(self) -> int:
        """Its queue's or partition's number, from 0: `hash` mod the group's queue count."""
        return self.held.queue

    @property
    def key(self) -> str | None:
        """Header `lbg-key`: within it messages are in order. None: it has no key, and no order."""
        return self.held.key

    @property
    def publisher(self) -> str | None:
        """Header `lbg-publisher`: name and incarnation of who published it; None for one that is not ours."""
        return self.held.identity[0] if self.held.identity else None

    @property
    def hash(self) -> int | None:
        """The key's, from the routing key; None without an identity, that is of a publisher that is not ours."""
        return self.held.identity[1] if self.held.identity else None

    @property
    def seq(self) -> int | None:
        """Header `lbg-seq`: from 0, of this publisher and hash ("Achieving Exactly-Once Message Delivery Guarantees
        with Sequence Numbers"); None without an identity."""
        return self.held.identity[2] if self.held.identity else None

    @property
    def session(self) -> str | None:
        """The session that it belongs to, for ever; None in other modes."""
        return self.held.attachment.session

    @property
    def sequence(self) -> int | None:
        """Its number in that session, from 1 without gaps: what an application commits with its own writes."""
        return self.held.sequence

    @property
    def session_epoch(self) -> str | None:
        """The life of the broker in which it got that number: a broker that is restored from a backup gives the number
        to another message, in another epoch. To be committed with the number."""
        return self.held.epoch

    @property
    def topic(self) -> str:
        """What follows prefix and hash in the routing key."""
        _, _, rest = str(self.delivery.routing_key).partition(".")
        return rest.partition(".")[2]

    @property
    def attempt(self) -> int:
        """The number of this call, from 1; over handoffs, as far as is known."""
        return self.held.attempts

    @property
    def redelivered(self) -> bool:
        """The broker had given it to a consumer before, which need not have processed it."""
        return self.delivery.redelivered

    @property
    def data(self) -> bytes:
        """The body."""
        return bytes(self.delivery.body)

    @property
    def headers(self) -> dict[str, Any]:
        """A copy of all of them (AMQP 0-9-1, section 4.2.5.5: field tables), ours among them."""
        return dict(self.delivery.headers)

    @property
    def content_type(self) -> str | None:
        """As its publisher said it; None when it did not."""
        return content_type_of(self.held.delivery.header)

    @property
    def delivery(self) -> Delivery:
        """As it came from the broker."""
        delivery: Delivery = self.held.delivery
        return delivery

    def __repr__(self) -> str:
        return f"<Message {self.id} key={self.key!r} queue={self.queue} attempt={self.attempt}>"

    def as_json(self) -> dict[str, Any]:
        """For a command and the stream: `data` when the body is text, else `data_base64`; `traceparent`, `tracestate`
        and `baggage` where the publisher sent them."""
        headers = self.delivery.headers
        fields: dict[str, Any] = {
            "id": self.id,
            "group": self.group,
            "queue": self.queue,
            "hash": self.hash,
            "key": self.key,
            "publisher": self.publisher,
            "seq": self.seq,
            "topic": self.topic,
            "attempt": self.attempt,
            "redelivered": self.redelivered,
            "headers": {name: _plain(value) for name, value in headers.items()},
            **trace_of(headers),
        }
        if self.sequence is not None:
            fields |= {"session": self.session, "sequence": self.sequence, "epoch": self.session_epoch}
        try:
            fields["data"] = self.data.decode()
        except UnicodeDecodeError:
            fields["data_base64"] = base64.b64encode(self.data).decode()
        return fields


def held_of(attachment: Attachment, delivery: Delivery, prefix: str) -> Held:
    """A delivery with what lanes and positions need of it. One that no publisher of ours stamped has no identity."""
    key, publisher, seq, published_at_us = stamp_of(delivery)
    identity: Identity | None = None
    if publisher is not None and seq is not None and seq >= 0:
        hash_ = _hash_in(delivery.routing_key, prefix)
        if hash_ is not None:
            identity = (publisher, hash_, seq)
    held = Held(attachment, delivery.delivery_tag, key=key, identity=identity, delivery=delivery)
    held.published_at_us = published_at_us or 0
    held.redelivered = delivery.redelivered
    if attachment.session is not None:
        held.sequence, held.ends_session = session_stamp_of(delivery)
        held.epoch = session_epoch_of(delivery)
    return held


@lru_cache(maxsize=4096)  # a stream repeats few routing keys: a hash and a topic
def _hash_in(routing_key: str, prefix: str) -> int | None:
    parts = routing_key.split(".", 2)
    if len(parts) < 2 or parts[0] != prefix or not parts[1].isdecimal():
        return None
    return int(parts[1])


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
