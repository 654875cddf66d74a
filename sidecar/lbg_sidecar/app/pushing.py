"""An application that is an HTTP server: one request for each message, a CloudEvent in binary mode.

2xx acknowledges, unless its body says otherwise; `replies` has the whole table. Up to `concurrency` requests are under
way at once, over kept connections. An abort closes the connection of its request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from ..consuming.concurrency_limit import ConcurrencyLimit
from ..message import Message
from ..verdict import Verdict, retry
from .channel import Calls
from .cloudevents import binary_headers
from .handling import handler_channel
from .probing import HealthRules
from .replies import verdict_of_reply
from .requesting import Requester, Unreachable
from .targets import parse_target
from .watching import HealthWatch

REPLY_MAX_BYTES = 64 * 1024
"""A verdict with its reason takes a few hundred bytes; the rest of a larger reply is not read."""


class PushChannel:
    """`target` as in `targets`; `wall_s` gives seconds since 1970. Raises SettingsError."""

    limit = ConcurrencyLimit

    def __init__(
        self,
        target: str,
        *,
        concurrency: int,
        health: HealthRules | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.target = parse_target(target)
        self._rules = health or HealthRules()
        self._wall_s = wall_s
        self.concurrency = concurrency
        self._workers = handler_channel(self._push, concurrency=concurrency)
        self._requester: Requester | None = None
        self._health: HealthWatch | None = None

    async def start(self, calls: Calls) -> None:
        self._requester = Requester(self.target)
        self._health = HealthWatch(self._rules, self.target, self._requester, calls)
        await self._workers.start(calls)
        self._health.start()

    def wake(self) -> None:
        self._workers.wake()

    def abort(self, messages: Collection[Message]) -> None:
        self._workers.abort(messages)

    async def stop(self, grace_s: float) -> None:
        if self._health is not None:
            await self._health.stop()
        await self._workers.stop(grace_s)
        if self._requester is not None:
            await self._requester.close()

    def ask_again(self) -> None:
        if self._health is not None:
            self._health.ask_again()

    def describe(self) -> dict[str, object]:
        health = self._health.describe() if self._health is not None else {}
        running = self._workers.describe()["running"]
        return {"channel": "http", "target": str(self.target), "running": running, **health}

    async def _push(self, message: Message) -> Verdict:
        requester, health = self._requester, self._health
        assert requester is not None
        assert health is not None
        try:
            reply = await requester.post(
                self.target.path,
                binary_headers(message),
                message.data,
                reply_max_bytes=REPLY_MAX_BYTES,
            )
        except Unreachable as error:
            health.unreachable(str(error))
            return retry(f"the application cannot be reached: {error}")
        health.answered()
        return verdict_of_reply(
            reply.status, reply.body, reply.retry_after, now_s=self._wall_s(), is_cut=reply.is_cut
        )
