"""Messages that a member publishes: dead letters, and processed messages for the validator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from lbg_core.amqp import EncodeError
from lbg_core.client import (
    BasicProperties,
    Channel,
    ClientConnection,
    ClientError,
    ConfirmingPublisher,
    Delivery,
    Nacked,
    Unroutable,
)
from lbg_core.client.republication import copied_properties, cut_reason, published_header
from lbg_core.client.retransmit import Outgoing
from lbg_core.group import (
    HEADER_ATTEMPTS,
    HEADER_DELIVERED_AT,
    HEADER_FINISHED_AT,
    HEADER_HASH,
    HEADER_INCARNATION,
    HEADER_KEY,
    HEADER_MEMBER,
    HEADER_MEMBER_NAME,
    HEADER_PUBLISHER,
    HEADER_QUEUE,
    HEADER_REASON,
    HEADER_REDELIVERED,
    HEADER_RELEASED,
    HEADER_SEQ,
    HEADER_SESSION,
    HEADER_SESSION_SEQ,
    HEADER_STARTED_AT,
    HEADER_TS,
    KEY_MAX_BYTES,
    Names,
)
from lbg_core.group.member_state import Identity
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.retransmit import Retransmitter, RetransmitTimeouts

log = logging.getLogger("lbg.member")

OPEN_AGAIN_S = 1.0
"""After a channel could not be opened, as when the connection has all that it may have."""

OnConfirmed = Callable[[InFlight], None]
WallClock = Callable[[float], int]  # the loop's time -> microseconds since the epoch


@dataclass(frozen=True, slots=True, eq=False)
class Publication:
    """A message as it is published. `body`: None for its own, which may be in a file, and is read when it is sent."""

    in_flight: InFlight
    routing_key: str
    properties: BasicProperties
    body: bytes | None

    @property
    def is_over(self) -> bool:
        return self.in_flight.is_over


class ExchangePublisher:
    """Publishes to one exchange in the order of `Retransmitter`, over the current channel or a new one. The first is
    opened with the first message: most members publish to none of their exchanges.

    `refused_hint` is logged when a message is refused or reaches no queue. `may_go_as_it_came`: a message whose
    properties do not fit into one frame is published with those that it came with. One that cannot be published at all
    stays unacknowledged, and those behind it go on.
    """

    def __init__(
        self,
        exchange: str,
        link: PublishingLink,
        *,
        on_confirmed: OnConfirmed,
        refused_hint: str,
        patience: RetransmitTimeouts | None = None,
        may_go_as_it_came: bool = False,
    ) -> None:
        self._may_go_as_it_came = may_go_as_it_came
        self._exchange = exchange
        self._publisher: ConfirmingPublisher | None = None
        self._link = link
        self._on_confirmed = on_confirmed
        self._refused_hint = refused_hint
        self._loop = asyncio.get_running_loop()
        self._retransmitter = Retransmitter[Publication](patience=patience)
        self._retry: asyncio.TimerHandle | None = None
        self._check: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None
        self._unsent: list[tuple[str, BasicProperties, bytes]] = []
        """Of `publish_once`; they wait for the first channel."""
        self._warned = False
        self._is_closed = False

    def publish(
        self,
        in_flight: InFlight,
        properties: BasicProperties,
        *,
        routing_key: str | None = None,
        body: bytes | None = None,
    ) -> None:
        """In order, and again until it is confirmed: then `on_confirmed` is called. The routing key and the body are
        those of the message by default."""
        delivery: Delivery = in_flight.delivery
        routing_key = delivery.routing_key if routing_key is None else routing_key
        self._retransmitter.offer(Publication(in_flight, routing_key, properties, body))
        self._send()

    def publish_once(self, routing_key: str, properties: BasicProperties, body: bytes = b"") -> None:
        """Without waiting for an answer."""
        if self._publisher is None:
            self._unsent.append((routing_key, properties, body))
            self._send()
            return
        with suppress(ClientError, EncodeError):
            self._publisher.channel.publish(self._exchange, routing_key, body, properties=properties)

    def close(self) -> None:
        """Ends with the connection: no answer counts any more."""
        self._is_closed = True
        for pending in (self._retry, self._check, self._opening):
            if pending is not None:
                pending.cancel()

    def _send(self) -> None:
        if self._opening is not None or self._is_closed:
            return
        retransmitter, publisher, now = self._retransmitter, self._publisher, self._loop.time()
        if self._link.is_blocked:
            retransmitter.blocked(now)
        elif publisher is None or (why := retransmitter.doubt(now)) is not None:
            if publisher is not None:
                log.warning(
                    "the channel that publishes to %s %s: going on over a new channel", self._exchange, why
                )
            self._opening = self._loop.create_task(self._open())
            return
        else:
            while publisher.has_room and (message := retransmitter.next_to_send(now)) is not None:
                try:
                    confirm = self._publish_soon(publisher, message.item)
                except (EncodeError, OSError) as error:  # of the file that has its body
                    name = message.item.in_flight.id
                    log.error("%s cannot be published to %s, and waits: %s", name, self._exchange, error)
                    retransmitter.withdraw(message)
                    continue
                except ClientError:
                    return  # the connection is lost, so unconfirmed messages are delivered again
                confirm.add_done_callback(partial(self._on_confirm, publisher, message))
        due = retransmitter.next_due
        if due is not None and due > now and self._retry is None:
            self._retry = self._loop.call_at(due, self._on_retry)
        if (retransmitter.waits or self._unsent) and self._check is None:
            self._check = self._loop.call_at(now + self._retransmitter.check_every_s, self._on_check)

    def _publish_soon(self, publisher: ConfirmingPublisher, item: Publication) -> asyncio.Future[None]:
        delivery: Delivery = item.in_flight.delivery
        body = bytes(delivery.body) if item.body is None else item.body
        where = (self._exchange, item.routing_key, body)
        try:
            return publisher.publish_soon(*where, properties=item.properties, mandatory=True)
        except EncodeError as error:
            if not self._may_go_as_it_came:
                raise
            log.warning("%s is published without this member's headers: %s", item.in_flight.id, error)
            return publisher.publish_soon(*where, header=published_header(delivery), mandatory=True)

    def _on_retry(self) -> None:
        self._retry = None
        self._send()

    def _on_check(self) -> None:
        self._check = None
        self._send()

    async def _open(self) -> None:
        try:
            publisher = await self._link.new_publisher()
        except ClientError as error:
            log.debug("no channel that publishes to %s: %s", self._exchange, error)
            self._opening = None
            if not self._is_closed and self._retry is None:
                self._retry = self._loop.call_later(OPEN_AGAIN_S, self._on_retry)
            return
        if self._publisher is not None:
            # Closed before anything is sent again: what it had on the way cannot come in between any more.
            await self._publisher.channel.close()
            self._retransmitter.renewed(self._loop.time())
        self._publisher = publisher
        self._opening = None
        unsent, self._unsent = self._unsent, []
        for routing_key, properties, body in unsent:
            self.publish_once(routing_key, properties, body)
        self._send()

    def _on_confirm(
        self, publisher: ConfirmingPublisher, message: Outgoing[Publication], confirm: asyncio.Future[None]
    ) -> None:
        error = confirm.exception()
        is_stale = self._is_closed or publisher is not self._publisher
        if is_stale or not isinstance(error, Nacked | Unroutable | None):
            return
        accepted = self._retransmitter.answered(
            message,
            self._loop.time(),
            ok=not isinstance(error, Nacked),
            returned=isinstance(error, Unroutable),
        )
        if accepted is not None:
            self._warned = False
            self._on_confirmed(accepted.in_flight)
        elif not self._warned:
            self._warned = True
            log.warning("messages to %s are refused (%s): %s", self._exchange, error, self._refused_hint)
        self._send()


class PublishingLink(Protocol):
    """The link, as far as it opens channels that publish."""

    async def new_publisher(self) -> ConfirmingPublisher: ...

    @property
    def is_blocked(self) -> bool: ...


class StreamLink(PublishingLink, Protocol):
    """The link, as far as it reads streams, too."""

    consume_connection: ClientConnection

    def watch(self, channel: Channel) -> None: ...


class Outbox:
    """Publishing over one connection, as long as it lives."""

    def __init__(
        self,
        names: Names,
        me: Identity,
        link: PublishingLink,
        *,
        on_confirmed: OnConfirmed,
        wall_us: WallClock,
        patience: RetransmitTimeouts | None = None,
    ) -> None:
        self._me = me
        self._wall_us = wall_us
        self._dead_letters = ExchangePublisher(
            names.dlx,
            link,
            on_confirmed=on_confirmed,
            refused_hint=f"is queue {names.dead} there? Dead letters wait for it",
            patience=patience,
            may_go_as_it_came=True,
        )
        self._validator = ExchangePublisher(
            names.validate,
            link,
            on_confirmed=on_confirmed,
            refused_hint="is `lbg validate` running, is its queue full? Messages wait for it",
            patience=patience,
            may_go_as_it_came=True,
        )

    def dead_letter(self, in_flight: InFlight) -> None:
        self._dead_letters.publish(in_flight, refused_properties(in_flight, self._me, self._wall_us))

    def republish(self, in_flight: InFlight) -> None:
        self._validator.publish(in_flight, self._republished_properties(in_flight))

    def released(self, in_flight: InFlight) -> None:
        """Reports the call of a message that is delivered again, without waiting for the confirm: it is no delivery,
        and counts for overlaps only."""
        properties = self._republished_properties(in_flight)
        properties.headers = {**(properties.headers or {}), HEADER_RELEASED: True}
        self._validator.publish_once(in_flight.delivery.routing_key, properties)

    def close(self) -> None:
        """The connection is gone, or about to be."""
        self._dead_letters.close()
        self._validator.close()

    def _republished_properties(self, in_flight: InFlight) -> BasicProperties:
        headers = in_flight.delivery.headers
        copied = (HEADER_PUBLISHER, HEADER_SEQ, HEADER_TS)
        key = in_flight.key
        return BasicProperties(
            headers={
                **({} if key is None or len(key) > KEY_MAX_BYTES else {HEADER_KEY: key}),
                **{name: headers[name] for name in copied if name in headers},
                HEADER_HASH: in_flight.identity[1] if in_flight.identity else 0,
                HEADER_REDELIVERED: in_flight.delivery.redelivered,
                HEADER_DELIVERED_AT: self._wall_us(in_flight.started_at),
                **_call_headers(in_flight, self._me, self._wall_us),
            },
            delivery_mode=2,
        )


def _call_headers(in_flight: InFlight, me: Identity, wall_us: WallClock) -> dict[str, str | int]:
    """Headers with the queue of a message, its member, the times of its call, and its place in a session."""
    headers: dict[str, str | int] = {
        HEADER_QUEUE: in_flight.queue,
        HEADER_MEMBER: me.index,
        HEADER_MEMBER_NAME: me.name,
        HEADER_INCARNATION: me.incarnation,
    }
    if in_flight.first_started_at is not None and in_flight.finished_at is not None:
        headers[HEADER_STARTED_AT] = wall_us(in_flight.first_started_at)
        headers[HEADER_FINISHED_AT] = wall_us(in_flight.finished_at)
    if in_flight.attachment.session is not None and in_flight.sequence is not None:
        headers[HEADER_SESSION] = in_flight.attachment.session
        headers[HEADER_SESSION_SEQ] = in_flight.sequence
    return headers


def refused_properties(in_flight: InFlight, me: Identity, wall_us: WallClock) -> BasicProperties:
    """Properties of a dead letter, or of a message in the parking queue: its own, and who failed on it, and why."""
    added = {
        HEADER_REASON: cut_reason(in_flight.reason),
        HEADER_ATTEMPTS: in_flight.attempts,
        **_call_headers(in_flight, me, wall_us),
    }
    return copied_properties(in_flight.delivery, added=added)
