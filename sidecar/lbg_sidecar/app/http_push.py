"""An application that is an HTTP server: one request for each message, or for a batch of them.

2xx acknowledges, unless its body has another verdict; `http_client` has the whole table. Up to `concurrency` requests
are under way at once, over connections that stay open. An abort closes the connection of its request.

Only the first message of each key is there to be taken, so a batch has at most one of a key. With nothing on its way,
a message is sent at once: a single message does not wait. During a request, further messages are gathered until it
is `size` messages, or the first of them has waited for `linger_ms`, or a reply comes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from lbg_sidecar.app.callable import NotCalled, handler_channel
from lbg_sidecar.app.channel import AppChannel, Calls
from lbg_sidecar.app.cloudevents import BATCH_CONTENT_TYPE, attributes, batch_item, binary_headers
from lbg_sidecar.app.health import HealthProbe, HealthRules
from lbg_sidecar.app.http_client import (
    BatchVerdicts,
    HttpClient,
    Reply,
    Unconnected,
    Unreachable,
    parse_target,
    verdict_of_reply,
    verdicts_of_reply,
)
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.limits import BatchLimit, ConcurrencyLimit
from lbg_sidecar.message import INTERRUPTED, Message, Verdict, interrupted, retry

REPLY_MAX_BYTES = 64 * 1024
"""A verdict with its reason takes a few hundred bytes; the rest of a larger reply is not read."""


class _HttpChannel(AppChannel):
    """A channel that pushes messages by HTTP requests. `target`: see `parse_target`; `wall_s` gives seconds since 1970.
    Raises SettingsError."""

    def __init__(
        self, target: str, health: HealthRules | None = None, wall_s: Callable[[], float] = time.time
    ) -> None:
        self.target = parse_target(target)
        self._client = HttpClient(self.target)
        self._health = HealthProbe(health or HealthRules(), self.target, self._client)
        self._wall_s = wall_s

    def request_position(self) -> bool:
        self._health.request_position()
        return True

    def describe(self) -> dict[str, object]:
        return {"target": str(self.target), **self._health.describe()}

    async def _post(self, headers: dict[str, str], body: bytes, reply_max_bytes: int) -> Reply:
        """Raises Unreachable."""
        try:
            reply = await self._client.post(self.target.path, headers, body, reply_max_bytes=reply_max_bytes)
        except Unreachable as error:
            self._health.unreachable(str(error))
            raise
        self._health.answered()
        return reply


CONNECT_AGAIN_S = 0.5


def _unreachable(error: Unreachable) -> Verdict:
    """An application that did not get the message has not failed with it."""
    reason = f"the application cannot be reached: {error}"
    return interrupted(reason, CONNECT_AGAIN_S) if isinstance(error, Unconnected) else retry(reason)


class PushChannel(_HttpChannel):
    """One request for each message."""

    limit = ConcurrencyLimit

    def __init__(
        self,
        target: str,
        *,
        concurrency: int,
        health: HealthRules | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(target, health, wall_s)
        self.concurrency = concurrency
        self._workers = handler_channel(self._push, concurrency=concurrency)

    async def start(self, calls: Calls) -> None:
        await self._workers.start(calls)
        self._health.start(calls)

    def wake(self) -> None:
        self._workers.wake()

    def abort(self, messages: Collection[Message]) -> None:
        self._workers.abort(messages)

    async def stop(self, grace_s: float) -> None:
        await self._health.stop()
        await self._workers.stop(grace_s)
        self._client.close()

    def describe(self) -> dict[str, object]:
        running = self._workers.describe()["running"]
        return {"channel": "http", "running": running, **super().describe()}

    async def _push(self, message: Message) -> Verdict:
        try:
            reply = await self._post(binary_headers(message), message.data, REPLY_MAX_BYTES)
        except Unreachable as error:
            raise NotCalled(_unreachable(error)) from error
        return verdict_of_reply(reply, now_s=self._wall_s())


ALONE_FROM_ATTEMPT = 3
"""A message that failed twice goes in a request of its own: one that makes every batch fail must not use up the
attempts of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Limits of a batch.

    - `size`: messages in a request, at most. A member without the setting `concurrency` has `size` x `requests`; with
      less, batches stay smaller.
    - `max_bytes`: bodies in a request, at most; a larger message goes alone. 512 KiB stays below the 1 MiB that many
      servers take, with the attributes.
    - `linger_ms`: how long a message waits for others while another request is on its way; 0: not at all. 5 ms is
      little beside a request, and at 10,000 messages/s makes batches of 50.
    - `requests`: under way at once. 2: the application has the next one when it replies.
    - `abort_wait_s`: a request of which some messages were aborted is waited for so long, then closed.
    """

    size: int = 200
    max_bytes: int = 512 * 1024
    linger_ms: float = 5.0
    requests: int = 2
    abort_wait_s: float = 1.0


class BatchBuffer:
    """The messages of the next request. It is due when the first of them has waited for the linger."""

    def __init__(self, settings: BatchSettings) -> None:
        self.due_at = 0.0
        self._settings = settings
        self._messages: list[Message] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def is_full(self) -> bool:
        return len(self._messages) >= self._settings.size

    def add(self, message: Message, now: float) -> Sequence[list[Message]]:
        """Returns the batches that go at once because of it: one without room for it, or itself alone."""
        if message.attempt >= ALONE_FROM_ATTEMPT:
            return ([message],)
        size = message.in_flight.size
        sent: Sequence[list[Message]] = ()
        if self._messages and self._bytes + size > self._settings.max_bytes:
            sent = (self.take(),)
        if not self._messages:
            self.due_at = now + self._settings.linger_ms / 1000
        self._messages.append(message)
        self._bytes += size
        return sent

    def take(self) -> list[Message]:
        """All of it."""
        messages, self._messages, self._bytes = self._messages, [], 0
        return messages

    def remove(self, in_flight: InFlight) -> Message | None:
        """It is not to be sent after all; None if it is not here."""
        for message in self._messages:
            if message.in_flight is in_flight:
                self._messages.remove(message)
                self._bytes -= in_flight.size
                return message
        return None


log = logging.getLogger("lbg.member")

HEADERS = {"Content-Type": f"{BATCH_CONTENT_TYPE}; charset=UTF-8"}
REPLY_MAX_BYTES_PER_MESSAGE = 4096
"""A verdict with the longest stored reason takes about 2 KiB."""


@dataclass(eq=False, slots=True)
class _Request:
    messages: list[Message]
    aborted: set[InFlight] = field(default_factory=set)
    task: asyncio.Task[BatchVerdicts] | None = None
    limit: asyncio.TimerHandle | None = None


class BatchChannel(_HttpChannel):
    """One request for each batch."""

    limit = BatchLimit

    def __init__(
        self,
        target: str,
        *,
        settings: BatchSettings | None = None,
        health: HealthRules | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(target, health, wall_s)
        self._settings = settings or BatchSettings()
        self.concurrency = self._settings.size * self._settings.requests
        self._calls: Calls | None = None
        self._batch = BatchBuffer(self._settings)
        self._linger: asyncio.TimerHandle | None = None
        self._gather_soon: asyncio.Handle | None = None
        self._requests: set[_Request] = set()
        self._request_of: dict[InFlight, _Request] = {}

    async def start(self, calls: Calls) -> None:
        self._calls = calls
        self._health.start(calls)

    def wake(self) -> None:
        """Gathers what arrives in one turn of the event loop together, once."""
        if (
            self._gather_soon is None
            and self._calls is not None
            and len(self._requests) < self._settings.requests
        ):
            self._gather_soon = asyncio.get_running_loop().call_soon(self._gather)

    def abort(self, messages: Collection[Message]) -> None:
        loop = asyncio.get_running_loop()
        touched = set()
        for message in messages:
            request = self._request_of.get(message.in_flight)
            if request is not None:
                request.aborted.add(message.in_flight)
                touched.add(request)
            elif (gathered := self._batch.remove(message.in_flight)) is not None:
                loop.call_soon(self._end_interrupted, gathered)
        for request in touched:
            assert request.task is not None
            if len(request.aborted) == len(request.messages):
                request.task.cancel()
            elif request.limit is None:
                request.limit = loop.call_later(self._settings.abort_wait_s, request.task.cancel)

    def withdraw(self, messages: Collection[Message], *, reassigned: bool) -> None:
        """Returns messages that are gathered for a request and have not begun. A request that also has other messages
        is not closed: they would be processed twice."""
        for message in messages:
            request = self._request_of.get(message.in_flight)
            if request is None:
                if (gathered := self._batch.remove(message.in_flight)) is not None:
                    self._end_interrupted(gathered)
            elif reassigned:
                request.aborted.add(message.in_flight)
                if len(request.aborted) == len(request.messages) and request.task is not None:
                    request.task.cancel()

    async def stop(self, grace_s: float) -> None:
        self._calls = None
        for timer in (self._linger, self._gather_soon, *(request.limit for request in self._requests)):
            if timer is not None:
                timer.cancel()
        await self._health.stop()
        tasks = [request.task for request in self._requests if request.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        self._client.close()

    def describe(self) -> dict[str, object]:
        return {
            "channel": "http-batch",
            "running": len(self._request_of),
            "requests": len(self._requests),
            "gathered": len(self._batch),
            **super().describe(),
        }

    def _gather(self) -> None:
        self._gather_soon = None
        calls, gathering = self._calls, self._batch
        if calls is None:
            return
        now = asyncio.get_running_loop().time()
        while len(self._requests) < self._settings.requests:
            message = None if gathering.is_full else calls.take()
            if message is not None:
                for batch in gathering.add(message, now):
                    self._send(batch)
            elif gathering.is_full or not self._requests or now >= gathering.due_at:
                if not gathering:
                    break
                self._send(gathering.take())
            else:
                break
        self._set_linger()

    def _set_linger(self) -> None:
        """Starts the timer if there is room for another request. The end of a request gathers as well."""
        has_room = len(self._requests) < self._settings.requests
        if self._batch and has_room and self._linger is None:
            self._linger = asyncio.get_running_loop().call_at(self._batch.due_at, self._lingered)

    def _lingered(self) -> None:
        self._linger = None
        self.wake()

    def _end_interrupted(self, message: Message) -> None:
        """Reports waiting messages as not begun. In a turn of its own: an abort may come from anywhere."""
        if self._calls is not None:
            self._calls.end(message, INTERRUPTED)

    def _send(self, messages: list[Message]) -> None:
        request = _Request(messages)
        self._requests.add(request)
        for message in messages:
            self._request_of[message.in_flight] = request
        request.task = asyncio.get_running_loop().create_task(self._request(messages))
        request.task.add_done_callback(lambda task: self._over(request, task))

    async def _request(self, messages: list[Message]) -> BatchVerdicts:
        limit = REPLY_MAX_BYTES_PER_MESSAGE * (len(messages) + 1)
        try:
            body = f"[{','.join([batch_item(message) for message in messages])}]".encode()
            reply = await self._post(HEADERS, body, limit)
        except Unreachable as error:
            return BatchVerdicts(_unreachable(error))
        except Exception as error:  # a bug: its messages must not stay in flight for ever
            log.exception("a batch could not be sent")
            return BatchVerdicts(retry(f"the sidecar could not send it: {type(error).__name__}: {error}"))
        return verdicts_of_reply(reply, now_s=self._wall_s())

    def _over(self, request: _Request, task: asyncio.Task[BatchVerdicts]) -> None:
        """Nothing of it runs any more: only now may its messages go elsewhere."""
        self._requests.discard(request)
        if request.limit is not None:
            request.limit.cancel()
        for message in request.messages:
            del self._request_of[message.in_flight]
        calls = self._calls
        if calls is None:
            return
        closed = BatchVerdicts(INTERRUPTED)  # for those that were not aborted it is no failed attempt
        verdicts = closed if task.cancelled() else task.result()
        names = _names(request.messages, verdicts) if verdicts.named else itertools.repeat("")
        for message, name in zip(request.messages, names, strict=False):
            calls.end(message, INTERRUPTED if message.in_flight in request.aborted else verdicts.of(name))
        self.wake()


def _names(messages: list[Message], verdicts: BatchVerdicts) -> list[str]:
    """By what name the reply speaks of each: our id, or its publisher's, if only one of the batch has that."""
    names = [message.id for message in messages]
    if verdicts.named.keys() <= set(names):
        return names
    theirs = [attributes(message)["id"] for message in messages]
    often = Counter(theirs)
    return [
        its if name not in verdicts.named and often[its] == 1 else name
        for name, its in zip(names, theirs, strict=True)
    ]
