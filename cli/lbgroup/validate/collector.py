"""Collects the messages that members republish, over any number of connections."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lbg_core.admin import read_group
from lbg_core.amqp import Table
from lbg_core.client import (
    AccessRefused,
    AckBatcher,
    Channel,
    ChannelClosed,
    ClientConnection,
    ConnectError,
    ConnectionLost,
    ConnectionSettings,
    Delivery,
    NotFound,
    reconnect_loop,
)
from lbg_core.group import RABBITMQ, Names
from lbgroup.commands import CliError
from lbgroup.validate.republished import NotRepublished, Republished
from lbgroup.validate.validator import Finding, Overlaps, Validator

PREFETCH = 2000
TICK_S = 0.25
# After the last expected message, repeats of a crash may still be on their way.
QUIET_S = 1.0
FINISH_TIMEOUT_S = 3.0

T = TypeVar("T")

Expected = dict[str, dict[int, int]]
"""Publisher -> hash -> the sequence number that its next message would have."""


@dataclass(frozen=True, slots=True)
class CollectingSettings:
    """`expect`: reports of publishers, read as soon as they are there. `idle_timeout_s` None: wait for ever."""

    group: str
    expect: tuple[Path, ...] = ()
    idle_timeout_s: float | None = None
    keep_queue: bool = False
    clock_skew_s: float = 0.0


class Collector:
    """One run of the validator. `on_findings` is called for each message with findings, `on_tick` four times a second,
    `on_notice` with lines about connections, `on_listening` whenever it begins to consume: messages republished from
    then on are checked."""

    def __init__(
        self,
        settings: CollectingSettings,
        *,
        on_findings: Callable[[Sequence[Finding]], None],
        on_tick: Callable[[Validator], None] = lambda validation: None,
        on_notice: Callable[[str], None] = lambda line: None,
        on_listening: Callable[[], None] = lambda: None,
    ) -> None:
        self.validation = Validator(overlaps=Overlaps(round(settings.clock_skew_s * 1e6)))
        self.expected: Expected | None = None
        self._settings = settings
        self._names = Names(settings.group)
        self._on_findings = on_findings
        self._on_tick = on_tick
        self._on_notice = on_notice
        self._on_listening = on_listening
        self._over = asyncio.Event()
        self._last_at_s = asyncio.get_running_loop().time()
        self._acks: AckBatcher | None = None
        self._has_connected = False
        self._untried = 1
        self._failure: Exception | None = None

    def stop(self) -> None:
        """Report on the messages so far."""
        self._over.set()

    async def run(self, endpoints: Sequence[ConnectionSettings]) -> None:
        """Collects until all expected messages have come, none has come for the idle timeout, or `stop`.

        Raises ConnectError when there is no first connection, ProvisioningError when there is no such group, and
        Failure.
        """
        ticking = asyncio.ensure_future(self._tick())
        collecting = asyncio.ensure_future(self._collect_with_retries(endpoints))
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait((collecting, over), return_when=asyncio.FIRST_COMPLETED)
            # Without a connection there is nothing to wait for.
            await asyncio.wait((collecting,), timeout=FINISH_TIMEOUT_S)
            if collecting.done():
                collecting.result()
            if self._failure is not None:
                raise self._failure
        finally:
            for task in (ticking, collecting, over):
                task.cancel()
        if self._settings.expect and self.expected is None:
            self.expected = read_expected(self._settings.expect)

    async def _collect_with_retries(self, endpoints: Sequence[ConnectionSettings]) -> None:
        self._untried = len(endpoints)
        async for connection in reconnect_loop(
            endpoints, name="lbg validate", on_failure=self._no_connection
        ):
            try:
                if await self._collect(connection):
                    await self._finish(connection)
                    return
            except ConnectionLost as error:
                self._on_notice(f"connection lost: {error}")
            finally:
                await connection.close()

    async def _collect(self, connection: ClientConnection) -> bool:
        """Collects until the run is over (True) or the connection is (False)."""
        channel = await connection.open_channel()
        if not self._has_connected:
            self.validation.mode = (await read_group(channel, self._settings.group)).mode
            self._has_connected = True
        await self._subscribe(channel, on_rabbitmq=connection.server_properties.get("product") == RABBITMQ)
        over = asyncio.ensure_future(self._over.wait())
        ends: set[asyncio.Future[Any]] = {over, connection.closed, channel.closed}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
        if not self._over.is_set() and connection.is_open:
            raise CliError(f"the validator's channel was closed: {channel.closed.result()}")
        return self._over.is_set()

    async def _subscribe(self, channel: Channel, *, on_rabbitmq: bool) -> None:
        names = self._names
        arguments: Table = {"x-queue-type": "classic"} if on_rabbitmq else {}
        try:
            await channel.queue_declare(names.validation, durable=True, arguments=arguments)
            await channel.queue_bind(names.validation, names.validate)
            # What the application refused is not lost: it is among the dead letters.
            await channel.queue_bind(names.validation, names.dlx)
            self._acks = AckBatcher(channel)
            await channel.consume(
                names.validation, self._on_deliveries, prefetch_count=PREFETCH, exclusive=True
            )
            self._on_listening()
        except NotFound as error:
            raise CliError(
                f"group {names.group!r} has no exchange {names.validate}: `lbg group create {names.group} …` "
                "with the group's own attributes repairs it"
            ) from error
        except AccessRefused as error:
            raise CliError(
                f"queue {names.validation} cannot be consumed: another validator of group {names.group!r} is at "
                f"work, or this user has no permission ({error.reply_text})"
            ) from error
        except ChannelClosed as error:
            raise CliError(f"queue {names.validation} cannot be used: {error}") from error

    def _on_deliveries(self, deliveries: list[Delivery]) -> None:
        assert self._acks is not None
        self._last_at_s = asyncio.get_running_loop().time()
        for delivery in deliveries:
            try:
                message = self._read(delivery)
            except NotRepublished:
                self.validation.unreadable += 1
            else:
                findings = self.validation.observe(message, seen_before=delivery.redelivered)
                if findings:
                    self._notify(self._on_findings, findings)
            self._acks.settle(delivery.delivery_tag)

    def _read(self, delivery: Delivery) -> Republished:
        if delivery.exchange == self._names.dlx:
            return Republished.of_dead_letter(delivery.headers, delivery.routing_key, time.time_ns() // 1000)
        return Republished.parse(delivery.headers)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_S)
            self._notify(self._on_tick, self.validation)
            quiet_s = loop.time() - self._last_at_s
            timeout_s = self._settings.idle_timeout_s
            if timeout_s is not None and quiet_s >= timeout_s:
                self._on_notice(f"nothing came for {timeout_s:g} s")
                self.stop()
            if self._settings.expect and self.expected is None:
                self.expected = self._read_expected()
            if (
                self.expected is not None
                and quiet_s >= QUIET_S
                and self.validation.is_complete(self.expected)
            ):
                self.stop()

    async def _finish(self, connection: ClientConnection) -> None:
        if self._acks is not None:
            self._acks.flush()
        if not self._settings.keep_queue and connection.is_open:
            channel = await connection.open_channel()
            await channel.queue_delete(self._names.validation)

    def _notify(self, listener: Callable[[T], None], event: T) -> None:
        """Calls the listener. An error of it, as of a closed pipe, ends the run and not the connection."""
        try:
            listener(event)
        except Exception as error:
            self._failure = self._failure or error
            self.stop()

    def _read_expected(self) -> Expected | None:
        """The reports, once all are there and whole."""
        try:
            return read_expected(self._settings.expect)
        except CliError:
            return None

    def _no_connection(self, error: ConnectError, delay_s: float) -> None:
        self._untried -= 1
        if not self._has_connected and self._untried <= 0:
            raise error
        self._on_notice(f"{error}; trying again within {delay_s:.1f} s")


def read_expected(files: Sequence[Path]) -> Expected:
    """Counts that publishers report to have published; raises CliError naming the file that is missing or is no
    report."""
    expected: Expected = {}
    for file in files:
        try:
            report = json.loads(file.read_text())
            for epoch in report["epochs"]:
                by_hash = {int(hash_): int(next_seq) for hash_, next_seq in epoch["next_seq"].items()}
                expected[str(epoch["publisher"])] = by_hash
        except OSError as error:
            raise CliError(f"--expect {file}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CliError(f"--expect {file}: is no report of `lbg publish --report` ({error!r})") from error
    return expected
