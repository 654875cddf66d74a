"""The publisher of a group: accepts messages, and keeps a connection under the machine that orders them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from lbg_broker.client import (
    ClientConnection,
    ConnectError,
    ConnectionLost,
    ConnectionSettings,
    reconnecting,
)
from lbg_broker.group import GroupSpec, Names
from lbg_broker.journal import JournalWriter, flush_regularly
from lbg_broker.provisioning.errors import RecordUnavailable

from . import events
from .carrying import Carrying, Hooks
from .errors import PublisherClosed
from .heading import Heading
from .identity import Identity
from .message import Extra, Stamped
from .ordering import OrderedPublishing
from .outlasting import Outlasting
from .progress import Progress
from .report import PublishingReport
from .settings import PublishingSettings
from .state_file import StateFile
from .waiting import read_spec

# Accepted messages are sent in steps of this many, and the loop gets a turn in between, so that confirms are
# read while a fast producer publishes.
STEP_MESSAGES = 64


class GroupPublisher:
    """Publishes to one group, in order per key and without loss, over any number of connections.

    ::

        async with GroupPublisher("amqp://guest:guest@localhost/", group="orders") as publisher:
            await publisher.publish(key="N14228", body=b"…", topic="flight")
            await publisher.flush()

    `where`: one address or several, tried in turn. `state`: a file from which the publisher goes on after its
    own death; it is for inputs that can be read again from their start, see `feeding`. `journal`: a directory
    for records of what was confirmed. `on_event` is told of connections, full queues and the like.

    Every message is stamped with publisher, hash and the next sequence of both ("Achieving Exactly-Once Message
    Delivery Guarantees with Sequence Numbers"), and keeps them however often it is sent. With a state file, messages
    that an earlier run did not send are of a new epoch: `publish` waits until those before them are confirmed.

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
        self._outlasting: Outlasting | None = None
        self._last_connect_error: ConnectError | None = None
        self._progress = Progress()
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
                    await self._progress.more()
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

        Raises SpecError for a key or a topic that cannot be used and MessageTooLarge for a body over the broker's
        limit (the message is then not accepted), and what ended the publisher.
        """
        carrying = self._opened()
        machine = carrying.machine
        while not machine.has_room or self._progress.failure is not None:
            await self._progress.more()
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
        if self._progress.failure is not None:
            raise self._progress.failure
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
        return await self._progress.failed()

    def require_usable(self, key: str | None, topic: str, body: bytes) -> None:
        """Raises SpecError for a key, a topic or a body that `publish` would refuse."""
        self._opened().machine.stamper.require_usable(key, topic, body)

    async def flush(self) -> None:
        """Wait until everything accepted is confirmed (rabbitmq.com, "Publisher Confirms"). Raises what ended the
        publisher."""
        machine = self._opened().machine
        while not machine.is_settled or self._progress.failure is not None:
            await self._progress.more()

    async def close(self) -> None:
        """Close without waiting for confirms: leave the `async with`, or `flush` first, to have them.

        The broker has 5 s to answer the goodbye; when this is cancelled, the connection is dropped at once.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._progress.fail(PublisherClosed("the publisher is closed"))
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
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
        """Names of the queues that take nothing for now: they are at their limit and refuse (basic.nack)."""
        carrying = self._opened()
        return carrying.named(carrying.machine.full_queues)

    def report(self, *, bad_rows: int = 0) -> PublishingReport:
        """What was done so far."""
        carrying = self._opened()
        return PublishingReport.of(
            carrying.publisher,
            carrying.machine,
            state=self.state,
            bad_rows=bad_rows,
            seconds=self._loop.time() - self._began_at,
        )

    def _opened(self) -> Carrying:
        if self._carrying is None:
            raise PublisherClosed("the publisher is not open: use it in an `async with`")
        return self._carrying

    def _on_progress(self) -> None:
        machine = self._opened().machine
        if machine.has_room or machine.is_settled:
            self._progress.made()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                self._progress.fail(error)

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
        if self._outlasting is None:
            carrying = self._open(await read_spec(connection, self._names.group))
            self._outlasting = Outlasting(
                carrying, self._names, on_attached=self._progress.made, tell=self._on_event
            )
        limits = (self.settings.max_message_bytes, connection.max_message_bytes)
        self._opened().machine.stamper.body_max_bytes = min(filter(None, limits), default=None)
        await self._outlasting.over(connection)

    def _open(self, spec: GroupSpec) -> Carrying:
        identity, state, journal = self.identity, None, None
        if self._state_path is not None:
            self.state = state = StateFile.open(self._state_path, identity, spec)
            self.identity = identity = state.identity
            if state.start.is_resumed:
                self._on_event(
                    events.Resumed(
                        str(state.path),
                        run=state.before.runs,
                        saved_at_us=state.saved_at_us,
                        confirmed=state.start.position,
                        unknown=state.sent_position - state.start.position,
                    )
                )
        if self._journal_directory is not None:
            journal = JournalWriter(
                self._journal_directory,
                f"published-{identity.publisher if state is None else state.first_identity.publisher}",
                on_problem=lambda line: self._on_event(events.JournalTrouble(line)),
            )
            self._start(flush_regularly(journal))
        start = state.start if state is not None else None
        self._carrying = Carrying(
            OrderedPublishing(spec, self.settings, seed=identity.seed, start=start),
            self._names,
            Heading(identity.publisher, self._content_type),
            hooks=Hooks(self._on_progress, self._progress.fail, self._on_event),
            next_epoch=state.next_identity.publisher if state is not None and state.next_identity else "",
            state=state,
            journal=journal,
        )
        return self._carrying

    def _on_unreachable(self, error: ConnectError, retry_in_s: float) -> None:
        self._last_connect_error = error
        self._on_event(events.Unreachable(str(error), retry_in_s))
