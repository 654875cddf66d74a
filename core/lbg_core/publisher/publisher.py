"""`GroupPublisher`: numbered, ordered, resumable publishing to a group."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from lbg_core.admin.errors import RecordUnavailable, plain_reason
from lbg_core.client import (
    ClientConnection,
    ConnectError,
    ConnectionLost,
    ConnectionSettings,
    reconnect_loop,
)
from lbg_core.group import GroupSpec, Key, Names
from lbg_core.journal import JournalWriter, flush_regularly
from lbg_core.publisher import events
from lbg_core.publisher.channel_session import (
    UNROUTED_READ_S,
    AccessDenied,
    IngressEnded,
    UnroutedCount,
    is_ingress_closed,
    read_spec,
    run_channel,
    wait_for_ingress,
)
from lbg_core.publisher.errors import BrokerRefused, PublisherClosed
from lbg_core.publisher.resume import EndedEpoch, EndedEpochs, Identity, Totals
from lbg_core.publisher.send_window import PublishingSettings, SendWindow
from lbg_core.publisher.sender import Hooks, Sender
from lbg_core.publisher.stamper import HeaderEncoder, MessageOptions, StampedMessage
from lbg_core.publisher.state_file import StateFile
from lbg_core.tracing import Tracing, attributes_of, tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class Progress:
    """`failure`: what ended publishing, for good; None while it goes on."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._made = asyncio.Event()
        self._failed = asyncio.Event()

    def made(self) -> None:
        """Wakes waiting callers."""
        self._made.set()

    async def more(self) -> None:
        """Return when there was some from now on. Raises `failure`."""
        if self.failure is not None:
            raise self.failure
        self._made.clear()
        await self._made.wait()
        if self.failure is not None:
            raise self.failure

    def fail(self, error: Exception) -> None:
        """The first failure counts."""
        self.failure = self.failure or error
        self._failed.set()
        self._made.set()

    async def failed(self) -> Exception:
        """Return the failure, when there is one."""
        await self._failed.wait()
        assert self.failure is not None
        return self.failure


@dataclass(frozen=True, slots=True)
class PublishingReport:
    """`published` messages have a sequence number, and `epochs` has for each hash how many in each epoch, the oldest
    first; `publisher` and `next_seq` are the last of them. The broker has `confirmed` of them. These, and the
    counts of what went otherwise (see `send_window.Counts`), are over all `runs` of a state file, but for
    `epochs_left_out`: so many came before. The rest is of this run. `bad_rows` were no messages and were passed over.
    `unrouted`: messages that no queue of the group took meanwhile, of all publishers; None where that is not known.
    `messages_per_s`: confirmed in this run, over its `seconds` from the first attempt to connect on. `resumed_at_us`:
    when the state was saved that it went on from, 0 where that is not known; None if there was none. `new_epoch`:
    messages that were not sent before, by that state.
    """

    publisher: str
    published: int
    confirmed: int
    refused: int
    resends: int
    maybe_twice: int
    accepted_after_gap: int
    inverted: int
    runs: int
    published_in_this_run: int
    without_key: int
    bad_rows: int
    unrouted: int | None
    connections: int
    seconds: float
    messages_per_s: float
    next_seq: dict[int, int]
    epochs: list[dict[str, object]]
    epochs_left_out: int
    resumed_at_us: int | None
    new_epoch: int

    @classmethod
    def of(
        cls,
        publisher: str,
        machine: SendWindow,
        *,
        state: StateFile | None,
        bad_rows: int = 0,
        unrouted: int | None = None,
        seconds: float,
    ) -> PublishingReport:
        counts, published = machine.counts, machine.stamper.position
        before = Totals() if state is None else state.before
        ended = EndedEpochs() if state is None else state.ended
        if state is not None and machine.ended_epoch is not None and not state.has_next_epoch:
            ended = ended.with_one_more(EndedEpoch.of(state.identity.publisher, machine.ended_epoch))
        last = EndedEpoch.of(publisher, machine.stamper.next_seq)
        return cls(
            publisher=publisher,
            published=published,
            confirmed=published - sum(not message.confirmed for message in machine.floor.open),
            refused=before.refused + counts.refused,
            resends=before.resends + counts.resends,
            maybe_twice=before.maybe_twice + counts.maybe_twice,
            accepted_after_gap=before.accepted_after_gap + counts.accepted_after_gap,
            inverted=before.inverted + counts.inverted,
            runs=before.runs + 1,
            published_in_this_run=counts.confirmed,
            without_key=counts.without_key,
            bad_rows=bad_rows,
            unrouted=unrouted,
            connections=counts.connections,
            seconds=round(seconds, 3),
            messages_per_s=round(counts.confirmed / seconds, 1) if seconds > 0 else 0.0,
            next_seq=dict(last.next_seq),
            epochs=[
                {"publisher": each.publisher, "next_seq": dict(each.next_seq)}
                for each in (*ended.latest, last)
            ],
            epochs_left_out=ended.left_out,
            resumed_at_us=state.saved_at_us if state is not None and state.start.is_resumed else None,
            new_epoch=machine.new_epoch_count,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


class PublisherLoop:
    """`on_attached` is called whenever there may be something new for who waits on the publisher."""

    def __init__(
        self,
        carrying: Sender,
        names: Names,
        *,
        on_attached: Callable[[], None],
        on_event: Callable[[events.PublisherEvent], None],
    ) -> None:
        self._sender = carrying
        self._names = names
        self._on_attached = on_attached
        self._emit = on_event
        self._refused_at: int | None = None
        """Number of confirmed messages when the broker last refused for no reason that the group's record has."""

    async def over(self, connection: ClientConnection) -> NoReturn:
        """Raises ConnectionLost when the connection is gone; every other error is final."""
        carrying = self._sender
        while True:
            spec = carrying.machine.stamper.spec
            current = await wait_for_ingress(connection, spec, on_event=self._on_ingress)
            if current.queue_count != spec.queue_count:
                carrying.repartition(current)
            try:
                await run_channel(
                    connection, carrying, self._names, on_attached=self._on_attached, on_event=self._emit
                )
            except IngressEnded:
                continue
            except AccessDenied as refusal:
                await self._judge(connection, current, refusal)

    async def _judge(self, connection: ClientConnection, spec: GroupSpec, refusal: AccessDenied) -> None:
        """Raise BrokerRefused unless the group takes nothing on purpose, or did so a moment ago: who is refused again,
        with nothing confirmed in between and no word of it in the record, may not publish."""
        confirmed = self._sender.machine.counts.confirmed
        if await is_ingress_closed(connection, spec):
            self._refused_at = None
        elif self._refused_at == confirmed:
            raise BrokerRefused(str(refusal))
        else:
            self._refused_at = confirmed

    def _on_ingress(self, event: events.IngressClosed | events.IngressPaused | events.IngressOpen) -> None:
        self._sender.machine.full_queues.clear()  # what refuses is the group, and for another reason
        self._emit(event)
        self._on_attached()  # who opens a publisher need not wait for the group


class SendSpans:
    """Spans of accepted messages until they are confirmed."""

    def __init__(self, traced: Tracing, group: str) -> None:
        self._tracing = traced
        self._group = group
        self._open: dict[int, Span] = {}

    def accept(
        self,
        sender: Sender,
        key: Key | None,
        topic: str,
        body: bytes,
        extra: MessageOptions | None = None,
        on_confirmed: Callable[[], None] = lambda: None,
    ) -> StampedMessage:
        """Accept a message with the context of its span, whose parent is that of `extra`, else this task's. Raises as
        the window's `accept` does."""
        given = {} if extra is None else extra.headers
        span = self._tracing.send(self._group, given)
        try:
            headers = {**given, **self._tracing.headers_of(span)}
            options = MessageOptions(headers) if extra is None else replace(extra, headers=headers)
            message = sender.machine.accept(key, topic, body, options)
        except Exception as error:
            self._tracing.fail(span, type(error).__name__, str(error))
            span.end()
            raise
        id_ = f"{sender.publisher}-{message.hash}-{message.seq}"
        span.set_attributes(attributes_of(queue=message.queue, id=id_, key=message.key, size=len(body)))
        if message.confirmed:  # by an earlier run
            span.end()
        else:
            self._open[message.position] = span
        sender.awaited[message.position] = partial(self._confirmed, message.position, on_confirmed)
        return message

    def close(self) -> None:
        """End the spans of messages that are not confirmed."""
        for span in self._open.values():
            self._tracing.fail(
                span, "unconfirmed", "the publisher was closed before the broker confirmed the message"
            )
            span.end()
        self._open.clear()

    def _confirmed(self, position: int, on_confirmed: Callable[[], None]) -> None:
        if (span := self._open.pop(position, None)) is not None:
            span.end()
        on_confirmed()


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
    own death; it is for inputs that can be read again from their start, see `publish_rows`. `journal`: a directory
    for records of what was confirmed. `on_event` is called for connections, full queues and the like.

    Every message is stamped with publisher, hash and the next sequence of both ("Achieving Exactly-Once Message
    Delivery Guarantees with Sequence Numbers"), and keeps them however often it is sent. With a state file, messages
    that an earlier run did not send are of a new epoch: `publish` waits until those before them are confirmed.

    A lost connection, a full queue and a broker that blocks publishers are waited for. What cannot pass by
    itself is raised by the first of `publish`, `flush` and the `async with` that meets it: a PublishingError, a
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
        self._sender: Sender | None = None
        self._loop_runner: PublisherLoop | None = None
        self._not_opened = ConnectError("no connection in time")
        self._progress = Progress()
        self._unrouted = UnroutedCount(self._names, on_event)
        self._connection: ClientConnection | None = None
        self._traces: SendSpans | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._unstepped = 0
        self._is_closed = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._began_at = self._loop.time()
        if (traced := tracing(self.identity.name)) is not None:
            self._traces = SendSpans(traced, self._names.group)
        self._start(self._serve())
        try:
            async with asyncio.timeout(self.settings.first_connection_s):
                while self._sender is None:
                    await self._progress.more()
        except TimeoutError:
            await self.close()
            raise self._not_opened from None
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
            await self._read_unrouted()
        finally:
            await self.close()

    async def publish(self, *, key: Key | None, body: bytes, topic: str = "") -> None:
        """Accept a message; waits while too much is unconfirmed. A message without a key (None, or empty) gets a random
        hash. 1, 1.0 and "1" are the same key.

        Raises SpecError for a key or a topic that cannot be used and MessageTooLarge for a body over the broker's
        limit (the message is then not accepted), and what ended the publisher.
        """
        carrying = self._opened()
        machine = carrying.machine
        while not machine.has_room or self._progress.failure is not None:
            await self._progress.more()
        if self._traces is None:
            machine.accept(key, topic, body)
        else:
            self._traces.accept(carrying, key, topic, body)
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
        key: Key | None,
        body: bytes,
        topic: str = "",
        extra: MessageOptions | None = None,
        on_confirmed: Callable[[], None] = lambda: None,
    ) -> StampedMessage:
        """Accept a message without waiting; `on_confirmed` is called when the broker has confirmed it.

        The caller checks `has_room` first and watches `failed`. Raises as `publish` does.
        """
        carrying = self._opened()
        if self._progress.failure is not None:
            raise self._progress.failure
        if self._traces is None:
            message = carrying.machine.accept(key, topic, body, extra)
            carrying.awaited[message.position] = on_confirmed
        else:
            message = self._traces.accept(carrying, key, topic, body, extra, on_confirmed)
        carrying.step_soon()
        return message

    @property
    def has_room(self) -> bool:
        """True if `publish` would accept a message at once."""
        return self._opened().machine.has_room

    async def failed(self) -> Exception:
        """Return what ended the publisher, when it has ended."""
        return await self._progress.failed()

    def require_usable(self, key: Key | None, topic: str, body: bytes) -> None:
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
        if self._traces is not None:
            self._traces.close()
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            if self._sender is not None:
                self._sender.close()

    @property
    def unrouted_count(self) -> int | None:
        """Messages that no queue of the group took since this publisher's start, of all publishers; they are confirmed,
        and wait in the group's queue of unrouted messages. Read every 5 s, and at the end of the `async with`; None
        while it is not known."""
        return self._unrouted.arrived

    @property
    def spec(self) -> GroupSpec:
        """The group's attributes, as its record states them."""
        return self._opened().machine.stamper.spec

    @property
    def is_opened(self) -> bool:
        """True if there ever was a connection and a group, so that there is something to report."""
        return self._sender is not None

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
        """Report of what was done so far."""
        carrying = self._opened()
        return PublishingReport.of(
            carrying.publisher,
            carrying.machine,
            state=self.state,
            bad_rows=bad_rows,
            unrouted=self._unrouted.arrived,
            seconds=self._loop.time() - self._began_at,
        )

    def _opened(self) -> Sender:
        if self._sender is None:
            raise PublisherClosed("the publisher is not open: use it in an `async with`")
        if os.getpid() != self._process:
            raise PublisherClosed(
                f"the publisher is that of process {self._process}: a forked child opens one of its own"
            )
        return self._sender

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
            async for connection in reconnect_loop(self._where, name=name, on_failure=self._on_unreachable):
                address = connection.settings.address
                self._on_event(events.Connected(address))
                self._not_opened = ConnectError(
                    f"{address} did not send the record of group {self._names.group!r} in time"
                )
                try:
                    await self._serve_on(connection)
                except RecordUnavailable as error:
                    self._not_opened = ConnectError(str(error))
                    self._on_event(events.Disconnected(plain_reason(error), 0))
                except ConnectionLost as error:
                    self._not_opened = ConnectError(str(error))
                    in_flight = self._sender.detach() if self._sender is not None else 0
                    self._on_event(events.Disconnected(plain_reason(error), in_flight))
        finally:
            if connection is not None:
                await connection.close()

    async def _serve_on(self, connection: ClientConnection) -> None:
        """Raises ConnectionLost when the connection is gone; every other error is final."""
        self._connection = connection
        if self._loop_runner is None:
            carrying = self._open(await read_spec(connection, self._names.group))
            await self._unrouted.read(connection)
            self._start(self._watch_unrouted())
            self._loop_runner = PublisherLoop(
                carrying, self._names, on_attached=self._progress.made, on_event=self._on_event
            )
        limits = (self.settings.max_message_bytes, connection.max_message_bytes)
        self._opened().machine.stamper.body_max_bytes = min(filter(None, limits), default=None)
        await self._loop_runner.over(connection)

    async def _watch_unrouted(self) -> None:
        while True:
            await asyncio.sleep(UNROUTED_READ_S)
            await self._read_unrouted()

    async def _read_unrouted(self) -> None:
        if self._connection is not None and self._sender is not None:
            await self._unrouted.read(self._connection)

    def _open(self, spec: GroupSpec) -> Sender:
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
        self._sender = Sender(
            SendWindow(spec, self.settings, seed=identity.seed, start=start),
            self._names,
            HeaderEncoder(identity.publisher, self._content_type),
            hooks=Hooks(self._on_progress, self._progress.fail, self._on_event),
            next_epoch=state.next_identity.publisher if state is not None and state.next_identity else "",
            state=state,
            journal=journal,
        )
        return self._sender

    def _on_unreachable(self, error: ConnectError, retry_in_s: float) -> None:
        self._not_opened = error
        self._on_event(events.Unreachable(str(error), retry_in_s))
