"""A member's side of an application channel without a broker: real lanes, and a record of every call."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from lbg_core.amqp import BasicProperties
from lbg_core.client import Backoff, Delivery
from lbg_core.group import HEADER_KEY, HEADER_PUBLISHER, HEADER_SEQ, HEADER_TS
from lbg_core.group.sequences import StreamRuns
from lbg_sidecar import AppChannel, Message, Verdict
from lbg_sidecar.core.delivery import Attachment, InFlight, Processed
from lbg_sidecar.core.dispatcher import Dispatcher, Rules
from lbg_sidecar.core.effects import Abort
from lbg_sidecar.core.message_states import NEXT, Event
from lbg_sidecar.message import Kind, in_flight_of

TICK_S = 0.01


def delivered(
    seq: int,
    *,
    key: str | None = "k",
    body: bytes = b"hello",
    attachment: Attachment | None = None,
    content_type: str | None = None,
    headers: dict[str, Any] | None = None,
) -> InFlight:
    """A message as our publisher stamps it, as it comes from the broker."""
    stamp = {HEADER_PUBLISHER: "p", HEADER_SEQ: seq, HEADER_TS: 1_700_000_000_000_000}
    keyed = {HEADER_KEY: key} if key is not None else {}
    delivery = Delivery.__new__(Delivery)
    delivery.channel, delivery.consumer_tag, delivery.delivery_tag = 1, "c", seq + 1
    delivery.redelivered = False
    delivery.exchange, delivery.routing_key = "lbg.g", "pre.5.a.b"
    properties = BasicProperties(content_type=content_type, headers={**keyed, **stamp, **(headers or {})})
    delivery.header, delivery.body = properties.encode(), body
    return in_flight_of(attachment or Attachment(1, 1), delivery, "pre")


class Offering:
    """`Calls` over the member's own lanes. `ended` is in the order in which calls ended."""

    def __init__(self, *, concurrency: int = 4, call_timeout_s: float = 30.0) -> None:
        rules = Rules(
            concurrency=concurrency, call_timeout_s=call_timeout_s, backoff=Backoff(first_s=0.01, max_s=0.05)
        )
        self.dispatcher = Dispatcher(rules, Processed(queue_count=8), lambda: 0.5)
        self.attachment = Attachment(1, 1, prefetch=10_000)
        self.taken: list[Message] = []
        self.ended: list[tuple[Message, Verdict]] = []
        self.readiness: list[tuple[bool, str]] = []
        self.streams: list[StreamRuns] = []
        self.is_ready = True
        self.channel: AppChannel | None = None
        self.session: str | None = None
        self.commits: list[int] = []
        self._seq = 0

    # Calls

    def take(self) -> Message | None:
        held = self.dispatcher.take(asyncio.get_running_loop().time()) if self.is_ready else None
        if held is None:
            return None
        message = Message(held, "g")
        self.taken.append(message)
        return message

    def end(self, message: Message, verdict: Verdict) -> None:
        self.ended.append((message, verdict))
        self.dispatcher.end(message.in_flight, verdict, asyncio.get_running_loop().time())

    def more(self) -> bool:
        return self.is_ready and self.dispatcher.lanes.available

    def ready(self, is_ready: bool, why: str = "") -> None:
        self.is_ready = is_ready
        self.readiness.append((is_ready, why))
        if is_ready and self.channel is not None:
            self.channel.wake()

    def processed(self, streams: Iterable[StreamRuns]) -> None:
        self.streams.extend(streams)

    def committed(self, sequence: int, epoch: str | None = None) -> None:
        self.commits.append(sequence)

    # The test's side

    def offer(
        self, key: str | None, body: bytes = b"hello", *, headers: dict[str, Any] | None = None
    ) -> InFlight:
        held = delivered(self._seq, key=key, body=body, attachment=self.attachment, headers=headers)
        self._seq += 1
        self.dispatcher.deliver(self.attachment, [held], asyncio.get_running_loop().time())
        if self.channel is not None:
            self.channel.wake()
        return held

    def lose(self) -> list[Message]:
        """The connection is lost: what runs is aborted, and may be with another member already."""
        running, _ = self.dispatcher.close(self.attachment)
        messages = [Message(held, "g") for held in running]
        assert self.channel is not None
        self.channel.abort(messages)
        return messages

    def revoke(self, *messages: Message, taken: bool) -> None:
        """The broker wants them back, or has given them to another member."""
        event = Event.REASSIGN if taken else Event.RECALL
        for held in (message.in_flight for message in messages):
            if NEXT[held.state][event] is None:
                held.is_recalled = True
            else:
                self.attachment.ack_window.forget((held,))
                self.dispatcher.lanes.move(held, event)
        assert self.channel is not None
        self.channel.withdraw(messages, reassigned=taken)

    def acked(self) -> list[int | None]:
        return [message.seq for message, verdict in self.ended if verdict.kind is Kind.ACK]

    def acked_by_key(self) -> dict[str | None, list[int | None]]:
        found: dict[str | None, list[int | None]] = defaultdict(list)
        for message, verdict in self.ended:
            if verdict.kind is Kind.ACK:
                found[message.key].append(message.seq)
        return found

    async def tick(self) -> None:
        """Work of the member's timer: timeouts are aborted, retries become due."""
        loop = asyncio.get_running_loop()
        assert self.channel is not None
        while True:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            self.dispatcher.tick(now)
            for effect in self.dispatcher.effects:
                if isinstance(effect, Abort):
                    self.channel.abort([Message(held, "g") for held in effect.calls])
            self.dispatcher.effects.clear()
            self.channel.wake()


@asynccontextmanager
async def offering_to(channel: AppChannel, offering: Offering) -> AsyncIterator[Offering]:
    """The channel is started and driven, and stopped at the end."""
    offering.channel = channel
    await channel.start(offering)
    ticking = asyncio.get_running_loop().create_task(offering.tick())
    try:
        yield offering
    finally:
        ticking.cancel()
        await channel.stop(2.0)
