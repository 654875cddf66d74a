"""The publisher of a group: accepts messages, and keeps a connection under the machine that orders them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from lbg_broker.client import (
    Channel,
    ChannelClosed,
    ClientConnection,
    ClientError,
    ConnectError,
    ConnectionLost,
    ConnectionSettings,
    NotFound,
    reconnecting,
)
from lbg_broker.group import GroupSpec, Names
from lbg_broker.journal import JournalWriter, flush_regularly
from lbg_broker.provisioning.errors import ProvisioningError, RecordUnavailable
from lbg_broker.provisioning.reading import read_group

from . import events
from .carrying import Carrying, Hooks
from .errors import BrokerRefused, GroupGone, PublisherClosed
from .heading import Heading
from .identity import Identity, group_facts
from .message import Extra, Stamped
from .ordering import OrderedPublishing
from .report import PublishingReport
from .settings import PublishingSettings
from .state_file import StateFile
from .state_layout import Totals

# Accepted messages are sent in steps of this many, and the loop gets a turn in between, so that confirms are
# read while a fast producer publishes.
STEP_MESSAGES = 64

# A queue that refuses is asked for its depth now and then: an empty one is not full.
DOUBT_AFTER_S = 0.5
DOUBT_EVERY_S = 0.25
ANSWERS_S = 2.0

# A quorum queue that has its majority back answers within 15 s what it was sent without one, or never.
RENEW_AFTER_S = 20.0
RENEW_AFTER_MAX_S = 160.0


class GroupPublisher:
    """Publishes to one group, in order per key and without loss, over any number of connections.

    ::

        async with GroupPublisher("amqp://guest:guest@localhost/", group="orders") as publisher:
            await publisher.publish(key="N14228", body=b"…", topic="flight")
            await publisher.flush()

    `where`: one address or several, tried in turn. `state`: a file from which the publisher goes on after its
    own death; it is for inputs that can be read again from their start, see `feeding`. `journal`: a directory
    for records of what was confirmed. `on_event` is told of connections, full queues and the like.

    A lost connection, a full queue and a broker that blocks publishers are waited for. What cannot pass by
    itself is raised by whichever of `publish`, `flush` and the `async with` meets it: a PublishingError, a
    ProvisioningError (no such group), a ConnectError (no first connection, or a refused login), a
    JournalingError.
    """

    def __init__(
        self,
        where: ConnectionSettings | str | Iterable[ConnectionSettings | str],
        *,
        group: str,
        identity: Identity | None = None,
        settings: PublishingSettings | None = None,
        content_type: str = "application/octet-stream",
        state: Path | str | None = None,
        journal: Path | str | None = None,
        on_event: Callable[[events.PublisherEvent], None] = lambda event: None,
    ) -> None:
        self.identity = identity or Identity("publisher")
        self.settings = settings or PublishingSettings()
        self.state: StateFile | None = None
        self._names = Names(group)
        self._where = where
        self._content_type = content_type
        self._state_path = state
        self._journal_directory = journal
        self._on_event = on_event
        self._carrying: Carrying | None = None
        self._failure: Exception | None = None
        self._last_connect_error: ConnectError | None = None
        self._progress = asyncio.Event()
        self._failed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._unstepped = 0
        self._is_closed = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._start(self._serve())
        try:
            async with asyncio.timeout(self.settings.first_connection_s):
                while self._carrying is None:
                    await self._wait_for_progress()
        except TimeoutError:
            await self.close()
            raise self._last_connect_error or ConnectError("no connection in time") from None
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            await self.close()

    async def publish(self, *, key: str | None, body: bytes, topic: str = "") -> None:
        """Accept a message; waits while too much is unconfirmed. A message without a key gets a random hash.

        Raises SpecError for a key or a topic that cannot be used (the message is then not accepted), and what
        ended the publisher.
        """
        carrying = self._opened()
        machine = carrying.machine
        while not machine.has_room or self._failure is not None:
            await self._wait_for_progress()
        machine.accept(key, topic, body)
        self._unstepped += 1
        if self._unstepped < STEP_MESSAGES:
            carrying.step_soon()
        else:
            self._unstepped = 0
            carrying.step()
            await asyncio.sleep(0)

    def publish_soon(
        self,
        *,
        key: str | None,
        body: bytes,
        topic: str = "",
        extra: Extra | None = None,
        on_confirmed: Callable[[], None] = lambda: None,
    ) -> Stamped:
        """Accept a message without waiting; `on_confirmed` is called when the broker has confirmed it.

        The caller looks at `has_room` first and watches `failed`. Raises as `publish` does.
        """
        carrying = self._opened()
        if self._failure is not None:
            raise self._failure
        message = carrying.machine.accept(key, topic, body, extra)
        carrying.awaited[message.position] = on_confirmed
        carrying.step_soon()
        return message

    @property
    def has_room(self) -> bool:
        """Whether `publish` would accept a message at once."""
        return self._opened().machine.has_room

    async def failed(self) -> Exception:
        """Return what ended the publisher, when it has ended."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    def require_usable(self, key: str | None, topic: str) -> None:
        """Raises SpecError for a key or a topic that `publish` would refuse."""
        self._opened().machine.stamper.require_usable(key, topic)

    async def flush(self) -> None:
        """Wait until everything accepted is confirmed. Raises what ended the publisher."""
        machine = self._opened().machine
        while not machine.is_settled or self._failure is not None:
            await self._wait_for_progress()

    async def close(self) -> None:
        """Close without waiting for confirms: leave the `async with`, or `flush` first, to have them."""
        if self._is_closed:
            return
        self._is_closed = True
        self._failure = self._failure or PublisherClosed("the publisher is closed")
        self._failed.set()
        self._progress.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._carrying is not None:
            self._carrying.close()

    @property
    def spec(self) -> GroupSpec:
        """The group's attributes, as its record states them."""
        return self._opened().machine.stamper.spec

    @property
    def is_opened(self) -> bool:
        """Whether there ever was a connection and a group, so that there is something to report."""
        return self._carrying is not None

    @property
    def accepted_count(self) -> int:
        """Messages accepted, with those of earlier runs of the state file."""
        return self._opened().machine.stamper.position

    @property
    def confirmed_count(self) -> int:
        """Messages confirmed in this run."""
        return self._opened().machine.counts.confirmed

    @property
    def full_queues(self) -> list[str]:
        """The queues that take nothing for now."""
        return [self._names.queue(queue) for queue in sorted(self._opened().machine.full_queues)]

    def report(self, *, bad_rows: int = 0) -> PublishingReport:
        """What was done so far."""
        return PublishingReport.of(
            self.identity.publisher,
            self._opened().machine,
            before=self.state.before if self.state is not None else Totals(),
            bad_rows=bad_rows,
            seconds=self._loop.time() - self._began_at,
        )

    def _opened(self) -> Carrying:
        if self._carrying is None:
            raise PublisherClosed("the publisher is not open: use it in an `async with`")
        return self._carrying

    async def _wait_for_progress(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._progress.clear()
        await self._progress.wait()
        if self._failure is not None:
            raise self._failure

    def _on_progress(self) -> None:
        machine = self._opened().machine
        if machine.has_room or machine.is_settled:
            self._progress.set()

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._failed.set()
        self._progress.set()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                self._fail(error)

        self._tasks.append(self._loop.create_task(guarded()))

    # Connections

    async def _serve(self) -> None:
        name = f"lbg publish {self._names.group} {self.identity.name}"
        connection: ClientConnection | None = None
        try:
            async for connection in reconnecting(self._where, name=name, on_failure=self._on_unreachable):
                self._on_event(events.Connected(connection.settings.address))
                try:
                    await self._serve_on(connection)
                except RecordUnavailable as error:
                    self._on_event(events.Disconnected(str(error), 0))
                except ConnectionLost as error:
                    in_flight = self._carrying.detach() if self._carrying is not None else 0
                    self._on_event(events.Disconnected(str(error), in_flight))
        finally:
            if connection is not None:
                await connection.close()

    async def _serve_on(self, connection: ClientConnection) -> None:
        """Raises ConnectionLost when the connection is gone; every other error is final."""
        carrying = self._carrying
        if carrying is None:
            carrying = self._open(await self._read(connection))
        else:
            await self._check_group(connection, carrying.machine.stamper.spec)
        patience_s = RENEW_AFTER_S
        while True:
            channel = await connection.open_channel()
            await channel.confirm_select()
            carrying.attach(connection, channel)
            self._progress.set()
            confirmed = carrying.machine.counts.confirmed
            doubting = self._loop.create_task(self._doubt(connection, carrying, patience_s))
            try:
                ends = (connection.closed, channel.closed, doubting)
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                doubting.cancel()
            if connection.closed.done() or channel.closed.done():
                break
            self._on_event(doubting.result())
            await carrying.pause(up_to_s=ANSWERS_S)
            carrying.detach()
            # Closed before anything is sent again: what it had for a queue cannot come in between any more.
            await channel.close()
            helped = carrying.machine.counts.confirmed > confirmed
            patience_s = RENEW_AFTER_S if helped else min(2 * patience_s, RENEW_AFTER_MAX_S)
        reason = channel.closed.result() if channel.closed.done() else connection.closed.result()
        if isinstance(reason, NotFound):
            raise GroupGone(f"group {self._names.group!r} was deleted while it was published to: {reason}")
        if isinstance(reason, ChannelClosed) and not reason.retryable:
            raise BrokerRefused(
                f"the broker takes no more messages for group {self._names.group!r}: {reason}"
            )
        raise ConnectionLost(str(reason or "the connection was closed"))

    async def _doubt(
        self, connection: ClientConnection, carrying: Carrying, patience_s: float
    ) -> events.ChannelRenewed:
        """Return when a new channel is worth trying: a queue refuses everything and has nothing, or answers nothing.

        A channel of RabbitMQ 3.10 asks the node that was the leader when it first published to a quorum queue whether
        it may; while that node is down, each answer is a refusal (rabbit_fifo_client:enqueue/3). And what a channel
        sent to a queue that had lost its majority may stay without an answer when that is back.
        """
        looking: Channel | None = None
        while True:
            await asyncio.sleep(DOUBT_EVERY_S)
            now = self._loop.time()
            for queue in carrying.machine.silent_queues(now, for_s=patience_s):
                why = f"has answered nothing for {patience_s:g} s"
                return events.ChannelRenewed(self._names.queue(queue), why)
            for queue in carrying.machine.refusing_queues(now, for_s=DOUBT_AFTER_S):
                name = self._names.queue(queue)
                with suppress(ClientError):
                    if looking is None or not looking.is_open:
                        looking = await connection.open_channel()
                    if (await looking.queue_declare(name, passive=True)).message_count == 0:
                        await looking.close()
                        return events.ChannelRenewed(name, "refuses messages though it is empty")

    def _open(self, spec: GroupSpec) -> Carrying:
        identity, state, journal = self.identity, None, None
        if self._state_path is not None:
            self.state = state = StateFile.open(self._state_path, identity, spec)
            self.identity = identity = state.identity
        if self._journal_directory is not None:
            journal = JournalWriter(
                self._journal_directory,
                f"published-{identity.publisher}",
                on_problem=lambda line: self._on_event(events.JournalTrouble(line)),
            )
            self._start(flush_regularly(journal))
        start = state.start if state is not None else None
        self._carrying = Carrying(
            OrderedPublishing(spec, self.settings, seed=identity.seed, start=start),
            self._names,
            Heading(identity.publisher, self._content_type),
            hooks=Hooks(self._on_progress, self._fail, self._on_event),
            state=state,
            journal=journal,
        )
        return self._carrying

    async def _read(self, connection: ClientConnection) -> GroupSpec:
        channel = await connection.open_channel()
        spec = await read_group(channel, self._names.group)
        await channel.close()
        return spec

    async def _check_group(self, connection: ClientConnection, spec: GroupSpec) -> None:
        """While the connection was gone the group may have been made anew, and hashes may lead elsewhere."""
        try:
            found = await self._read(connection)
        except (ProvisioningError, ChannelClosed):
            return  # its record's node may be down; whether the exchange is there, publishing will show
        if group_facts(found) != group_facts(spec):
            raise GroupGone(
                f"group {spec.name!r} was made anew with other attributes while it was published to: "
                "sequences cannot go on there; start anew"
            )

    def _on_unreachable(self, error: ConnectError, retry_in_s: float) -> None:
        self._last_connect_error = error
        self._on_event(events.Unreachable(str(error), retry_in_s))
