"""Lifecycle of the member in the sidecar: joins when it can, leaves on request, reports remedies."""

from __future__ import annotations

import asyncio
import logging
import shlex
from contextlib import suppress
from functools import partial
from typing import Any

from aiohttp import web

from lbg_core.admin import ProvisioningError
from lbg_core.admin.errors import plain_reason
from lbg_core.client import (
    AccessRefused,
    AuthenticationError,
    Backoff,
    ClientError,
    ConnectError,
    ConnectRefused,
    CredentialsUnreadable,
    TlsError,
)
from lbg_core.client import SettingsError as AddressError
from lbg_sidecar.app.channel import CONCURRENCY, AppChannel
from lbg_sidecar.app.command import CommandChannel
from lbg_sidecar.app.http_push import BatchChannel, PushChannel
from lbg_sidecar.app.websocket import PATH, StreamChannel, StreamSettings
from lbg_sidecar.core.state_log import AttemptLog
from lbg_sidecar.member import ConnectionStatus, Member
from lbg_sidecar.process.metrics import Measures
from lbg_sidecar.process.settings import Channel, SidecarSettings

_NOT_ALLOWED = (
    530  # AMQP 0-9-1, section 1.2: RabbitMQ's answer for a virtual host that is missing or not allowed
)

_ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (AuthenticationError, "correct LBG_USERNAME or LBG_PASSWORD_FILE, or create the user at the broker"),
    (CredentialsUnreadable, "correct LBG_USERNAME_FILE or LBG_PASSWORD_FILE, or mount the Secret there"),
    (TlsError, "LBG_CAFILE must have the CA that signed the certificate, for the host of LBG_BROKER"),
    (
        AccessRefused,
        "give the user the group's permissions: `lbg group create {group} …` creates a user with them",
    ),
    (ConnectRefused, ""),
    (ConnectError, "is the broker up, and is LBG_BROKER its address?"),
)


def remedy(error: Exception, *, group: str) -> str:
    """One line: what, where, and what to do."""
    advice = next((advice for kind, advice in _ADVICE if isinstance(error, kind)), "")
    if isinstance(error, ConnectRefused) and error.reply_code == _NOT_ALLOWED:
        advice = "create the virtual host and let the user use it, or correct the path of LBG_BROKER"
    return f"{plain_reason(error)}; {advice.format(group=group)}" if advice else plain_reason(error)


log = logging.getLogger("lbg.sidecar")

STREAM_CONCURRENCY = 256
"""Bound of the application's credit, which is how many messages it accepts at a time. A frame that is answered in
5 ms needs as many for 50,000 messages/s (bench/stream.py); with the 16 of other channels a frame has 16 at most."""


class MemberLifecycle:
    """`run` ends when the member has left, or with the error that can never be mended by waiting.

    A broker that is away, a user that is not there yet and a group that is not created yet are waited for: they
    come about without this process, and a restart would not bring them nearer.
    """

    def __init__(self, settings: SidecarSettings, measures: Measures) -> None:
        self.left = asyncio.Event()
        self.contact = ConnectionStatus(advise=partial(remedy, group=settings.member.group))
        self._settings = settings
        self._measures = measures
        self._stream: StreamChannel | None = None
        self._member = self._new_member()
        self._stopped = asyncio.Event()
        self._attempts = AttemptLog()

    async def run(self) -> None:
        """Raises MemberError, and the client's SettingsError."""
        backoff, failures = Backoff(), 0
        try:
            while not self._stopped.is_set():
                try:
                    async with self._member as member:
                        self._on_joined()
                        await member.run()
                    return
                except AddressError:
                    raise
                except (ClientError, ConnectError, ProvisioningError) as error:
                    failures += 1
                    wait_s = backoff.delay_s(failures)
                    self._log_failure(self.contact.failed(error), wait_s)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait_s):
                            await self._stopped.wait()
                            return
                    self._member = self._new_member()
        finally:
            self.left.set()

    def stop(self, why: str) -> None:
        """Leaves the group; the second call leaves at once."""
        self._stopped.set()
        self._member.stop(why)

    @property
    def is_leaving(self) -> bool:
        return self._stopped.is_set()

    @property
    def again(self) -> int:
        """Messages with running calls when the grace period ended, or the connection was lost: they are delivered
        again."""
        return int(self.state().get("delivered_again", 0))

    def state(self) -> dict[str, Any]:
        return {**self._member.state(), "left": self.left.is_set()}

    def extend(self, message_id: str, seconds: float, progress: str | None) -> float | None:
        """As `Member.extend`."""
        return self._member.extend(message_id, seconds, progress)

    async def count(self, queue: int) -> int | None:
        """The messages that wait in a queue at the broker; None if the broker cannot be reached now."""
        return await self._member.count(queue)

    @property
    def last_received_at(self) -> float | None:
        """Time of the last byte from the broker, on the loop's clock."""
        return self._member.last_received_at

    def why_not_ready(self) -> list[str]:
        """Nothing, when the member has joined and its application takes messages."""
        state = self.state()
        app = state.get("app", {})
        if self.left.is_set():
            return ["the member has left the group"]
        reasons = []
        if self.is_leaving:
            reasons.append("the member is leaving the group")
        if not app.get("ready", True):
            reasons.append(f"the application is not ready: {app['why']}")
        elif not state["connected"]:
            why = self.contact.error or "connecting to the broker"
            reasons.append(f"not in the group since {self.contact.since}: {why}")
        if state.get("session", {}).get("taken"):
            reasons.append(f"session {state['session']['name']!r} belongs to another live consumer")
        return reasons

    @property
    def routes(self) -> list[web.RouteDef]:
        """Routes of the application's channel on the local listener."""
        return [web.get(PATH, self._serve)] if self._settings.process.app is Channel.STREAM else []

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        assert self._stream is not None
        return await self._stream.serve(request)

    def _log_failure(self, error: str, wait_s: float) -> None:
        line = self._attempts.failed(error, asyncio.get_running_loop().time())
        if line is not None:
            log.warning("%s; trying again in %.1f s", line, wait_s)

    def _on_joined(self) -> None:
        line = self._attempts.succeeded(asyncio.get_running_loop().time())
        if line is not None:
            log.info("in the group %s", line)

    def _new_member(self) -> Member:
        return Member(
            self._settings.member, self._channel(), observer=self._measures.observe, contact=self.contact
        )

    def _channel(self) -> AppChannel:
        process, concurrency_setting = self._settings.process, self._settings.member.concurrency
        concurrency = concurrency_setting or CONCURRENCY
        if process.app is Channel.HTTP:
            return PushChannel(process.target, concurrency=concurrency, health=process.health)
        if process.app is Channel.HTTP_BATCH:
            return BatchChannel(process.target, settings=process.batches, health=process.health)
        if process.app is Channel.STREAM:
            self._stream = StreamChannel(
                StreamSettings(concurrency=concurrency_setting or STREAM_CONCURRENCY)
            )
            return self._stream
        return CommandChannel(shlex.split(process.command), concurrency=concurrency)
