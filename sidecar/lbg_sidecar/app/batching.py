"""An application that is an HTTP server and takes many messages in a request: CloudEvents, batched mode.

Only the first message of each key is there to be taken, so a batch has at most one of a key. With nothing on its way,
a message is sent at once: a trickle waits for nobody. While a request is on its way, what comes is gathered until it
is `size` messages, or the first of them has waited for `linger_ms`, or a reply comes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ..consuming.batch_limit import BatchLimit
from ..consuming.held import Held
from ..message import Message
from ..verdict import INTERRUPTED, retry
from .channel import Calls
from .cloudevents import BATCH_CONTENT_TYPE, attributes, batch_item
from .gathering import BatchSettings, Gathering
from .probing import HealthRules
from .replies import BatchVerdicts, verdicts_of_reply
from .requesting import Requester, Unreachable
from .targets import parse_target
from .watching import HealthWatch

log = logging.getLogger("lbg.member")

HEADERS = {"Content-Type": f"{BATCH_CONTENT_TYPE}; charset=UTF-8"}
REPLY_MAX_BYTES_PER_MESSAGE = 4096
"""A verdict with the longest reason that is kept takes about 2 KiB."""


@dataclass(eq=False, slots=True)
class _Request:
    messages: list[Message]
    aborted: set[Held] = field(default_factory=set)
    task: asyncio.Task[BatchVerdicts] | None = None
    limit: asyncio.TimerHandle | None = None


class BatchChannel:
    """`target` as in `targets`; `wall_s` gives seconds since 1970. Raises SettingsError."""

    limit = BatchLimit

    def __init__(
        self,
        target: str,
        *,
        settings: BatchSettings | None = None,
        health: HealthRules | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.target = parse_target(target)
        self._settings = settings or BatchSettings()
        self.concurrency = self._settings.size * self._settings.requests
        self._rules = health or HealthRules()
        self._wall_s = wall_s
        self._calls: Calls | None = None
        self._requester: Requester | None = None
        self._health: HealthWatch | None = None
        self._gathering = Gathering(self._settings)
        self._linger: asyncio.TimerHandle | None = None
        self._looking: asyncio.Handle | None = None
        self._requests: set[_Request] = set()
        self._request_of: dict[Held, _Request] = {}

    async def start(self, calls: Calls) -> None:
        self._requester = Requester(self.target)
        self._health = HealthWatch(self._rules, self.target, self._requester, calls)
        self._calls = calls
        self._health.start()

    def wake(self) -> None:
        """What arrives in one turn of the event loop is looked at together, once."""
        if (
            self._looking is None
            and self._calls is not None
            and len(self._requests) < self._settings.requests
        ):
            self._looking = asyncio.get_running_loop().call_soon(self._look)

    def abort(self, messages: Collection[Message]) -> None:
        loop = asyncio.get_running_loop()
        touched = set()
        for message in messages:
            request = self._request_of.get(message.held)
            if request is not None:
                request.aborted.add(message.held)
                touched.add(request)
            elif (gathered := self._gathering.remove(message.held)) is not None:
                loop.call_soon(self._end_interrupted, gathered)
        for request in touched:
            assert request.task is not None
            if len(request.aborted) == len(request.messages):
                request.task.cancel()
            elif request.limit is None:
                request.limit = loop.call_later(self._settings.abort_wait_s, request.task.cancel)

    def withdraw(self, messages: Collection[Message], *, taken: bool) -> None:
        """What is gathered for a request has not begun. A request that holds others' messages is not closed: they would
        be processed twice for it."""
        for message in messages:
            request = self._request_of.get(message.held)
            if request is None:
                if self._gathering.remove(message.held) is not None:
                    self._end_interrupted(message)
            elif taken:
                request.aborted.add(message.held)
                if len(request.aborted) == len(request.messages) and request.task is not None:
                    request.task.cancel()

    async def stop(self, grace_s: float) -> None:
        self._calls = None
        for timer in (self._linger, self._looking, *(request.limit for request in self._requests)):
            if timer is not None:
                timer.cancel()
        if self._health is not None:
            await self._health.stop()
        tasks = [request.task for request in self._requests if request.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        if self._requester is not None:
            await self._requester.close()

    def ask_again(self) -> None:
        if self._health is not None:
            self._health.ask_again()

    def describe(self) -> dict[str, object]:
        health = self._health.describe() if self._health is not None else {}
        return {
            "channel": "http-batch",
            "target": str(self.target),
            "running": len(self._request_of),
            "requests": len(self._requests),
            "gathered": len(self._gathering),
            **health,
        }

    def _look(self) -> None:
        self._looking = None
        calls, gathering = self._calls, self._gathering
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
        """A request that ends makes it look as well: then a timer is only wanted if there is room for another."""
        has_room = len(self._requests) < self._settings.requests
        if self._gathering and has_room and self._linger is None:
            self._linger = asyncio.get_running_loop().call_at(self._gathering.due_at, self._lingered)

    def _lingered(self) -> None:
        self._linger = None
        self.wake()

    def _end_interrupted(self, message: Message) -> None:
        """What waited to be sent had not begun. In a turn of its own: an abort may come from anywhere."""
        if self._calls is not None:
            self._calls.end(message, INTERRUPTED)

    def _send(self, messages: list[Message]) -> None:
        request = _Request(messages)
        self._requests.add(request)
        for message in messages:
            self._request_of[message.held] = request
        request.task = asyncio.get_running_loop().create_task(self._ask(messages))
        request.task.add_done_callback(lambda task: self._over(request, task))

    async def _ask(self, messages: list[Message]) -> BatchVerdicts:
        requester, health = self._requester, self._health
        assert requester is not None
        assert health is not None
        limit = REPLY_MAX_BYTES_PER_MESSAGE * (len(messages) + 1)
        try:
            body = f"[{','.join([batch_item(message) for message in messages])}]".encode()
            reply = await requester.post(self.target.path, HEADERS, body, reply_max_bytes=limit)
        except Unreachable as error:
            health.unreachable(str(error))
            return BatchVerdicts(retry(f"the application cannot be reached: {error}"))
        except Exception as error:  # a bug: its messages must not be held for ever
            log.exception("a batch could not be sent")
            return BatchVerdicts(retry(f"the sidecar could not send it: {type(error).__name__}: {error}"))
        health.answered()
        return verdicts_of_reply(
            reply.status, reply.body, reply.retry_after, now_s=self._wall_s(), is_cut=reply.is_cut
        )

    def _over(self, request: _Request, task: asyncio.Task[BatchVerdicts]) -> None:
        """Nothing of it runs any more: only now may its messages go elsewhere."""
        self._requests.discard(request)
        if request.limit is not None:
            request.limit.cancel()
        for message in request.messages:
            del self._request_of[message.held]
        calls = self._calls
        if calls is None:
            return
        closed = BatchVerdicts(INTERRUPTED)  # for those that were not aborted it is no failed attempt
        verdicts = closed if task.cancelled() else task.result()
        names = _names(request.messages, verdicts) if verdicts.named else itertools.repeat("")
        for message, name in zip(request.messages, names, strict=False):
            calls.end(message, INTERRUPTED if message.held in request.aborted else verdicts.of(name))
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
