"""Batches of an inbox: calls of a member that run at the same time are committed together.

A commit waits for the disk, so an inbox with a transaction for each message processes a few hundred messages a second.
Here one thread with one connection takes all calls that came while it committed the ones before, and commits them as
one transaction ("group commit"). No call waits for others to come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, Protocol, Self, TypeVar

from lbg_core.forks import ForkGuard, own
from lbg_sidecar.inbox.identity import Identified, InboxError, JsonStreams, identity_of
from lbg_sidecar.message import Kind, Message, Verdict, verdict_of

C = TypeVar("C")
"""Type of a connection."""

C_contra = TypeVar("C_contra", contravariant=True)


class TransactionalInbox(Protocol[C_contra]):
    """`SQLiteInbox` or `PostgresInbox`."""

    def create(self, connection: C_contra) -> None: ...
    def processed(self, connection: C_contra) -> JsonStreams: ...
    def settle(self, connection: C_contra) -> None: ...
    def transaction(self, connection: C_contra) -> AbstractContextManager[object]: ...
    def savepoint(self, connection: C_contra) -> AbstractContextManager[object]: ...
    def first_times(self, connection: C_contra, messages: Sequence[Identified]) -> Iterable[bool]: ...
    def forget(self, connection: C_contra, message: Identified) -> None: ...


@dataclass(eq=False, slots=True)
class _Call:
    message: Message
    future: asyncio.Future[Verdict | None]
    verdict: Verdict | None = None
    error: Exception | None = None

    def finish(self) -> None:
        if self.future.done():  # cancelled: the member does not wait any more
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.verdict)


class _Undone(Exception):
    """Rolls back to a savepoint."""


class _NotBegun(Exception):
    """No transaction could be begun, so no handler was called."""


class BatchingInbox(Generic[C]):
    """A handler for a member. Each message's effects happen once, and many messages share a commit::

        def connect() -> sqlite3.Connection:
            return sqlite3.connect("orders.db")

        def handle(connection: sqlite3.Connection, message: Message) -> None:
            connection.execute("INSERT INTO orders VALUES (?, ?)", (message.key, message.data))

        async with BatchingInbox(SQLiteInbox(), connect, handle) as handler:
            async with Member(MemberSettings(broker=…, group=…, concurrency=256), handler) as member:
                await member.run()

    `handle` is called with the connection and each message that the inbox has not recorded before, and must not end
    the transaction. It runs in a thread of its own, one call at a time. It returns as any handler: None or `ACK`
    commits; anything else, or an exception, undoes what it wrote, and nothing of other messages (a savepoint). The
    member gets the verdicts after the commit. Effects outside the database are not covered.

    A batch has at most `max_messages`, and at most as many as the member's `concurrency`: that setting is the bound.
    If a commit fails, each message of the batch is processed again in a transaction of its own. `connect` is called
    at the beginning and after a failed transaction. It may execute statements: a transaction that it leaves open is
    committed, so that no batch is part of it.

    Raises what `connect` raises, from `__aenter__`, and InboxError for a connection that cannot be used; ValueError
    if `max_messages` is below 1.
    """

    def __init__(
        self,
        inbox: TransactionalInbox[C],
        connect: Callable[[], C],
        handle: Callable[[C, Message], Verdict | None],
        *,
        max_messages: int = 500,
    ) -> None:
        if max_messages < 1:
            raise ValueError(f"max_messages is {max_messages}, but a batch has at least one message")
        self._inbox = inbox
        self._connect = connect
        self._handle = handle
        self._max_messages = max_messages
        self._connection: C | None = None
        self._guard: ForkGuard
        self._calls: deque[_Call] = deque()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_open = False
        self._is_committing = False
        self._loop: asyncio.AbstractEventLoop

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._guard = ForkGuard()
        self._is_open = True
        # A daemon: a handler that never returns must not prevent the end of the process.
        Thread(target=self._run, name="lbg-inbox", daemon=True).start()
        try:
            await self._in_thread(lambda: self._inbox.create(self._connected()))
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stop()

    async def __call__(self, message: Message) -> Verdict | None:
        """Process a message. Raises NoIdentity for one that no publisher of LBG stamped, InboxError if the inbox is not
        open, and what `handle` raised."""
        identity_of(message)
        self._require_open()
        call = _Call(message, self._loop.create_future())
        self._calls.append(call)
        self._commit_soon()
        return await call.future

    async def processed(self) -> JsonStreams:
        """Processed positions, for the member's start."""
        found: JsonStreams = await self._in_thread(lambda: self._inbox.processed(self._connected()))
        return found

    def _require_open(self) -> None:
        if not self._is_open:
            raise InboxError("the inbox is not open: use it as `async with BatchingInbox(…) as handler`")

    def _in_thread(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """The result of `work`, which is done even if the future is cancelled."""
        self._require_open()
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # `sys.exit()` of `connect` would end the thread alone
                done.set_exception(_as_exception(error))

        self._work.put(run)
        return asyncio.shield(asyncio.wrap_future(done))

    async def _stop(self) -> None:
        closed = self._in_thread(self._close)
        self._work.put(None)
        self._is_open = False
        await closed

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _commit_soon(self) -> None:
        if self._is_open and self._calls and not self._is_committing:
            self._is_committing = True
            self._work.put(self._commit_batch)

    def _commit_batch(self) -> None:
        """In the thread. What else waits for the thread goes before the next batch."""
        if batch := self._batch():
            self._process(batch)
        if is_committing := self._is_open and bool(self._calls):
            self._work.put(self._commit_batch)
        with suppress(RuntimeError):  # the loop is closed: no call waits any more
            self._loop.call_soon_threadsafe(self._committed, batch, is_committing)

    def _committed(self, batch: list[_Call], is_committing: bool) -> None:
        for call in batch:
            call.finish()
        self._is_committing = is_committing
        self._commit_soon()

    def _batch(self) -> list[_Call]:
        """Calls that wait. A message that is delivered twice comes in two batches: its second call sees the record of
        the first."""
        batch: dict[tuple[str, int, int], _Call] = {}
        later: list[_Call] = []
        while self._calls and len(batch) + len(later) < self._max_messages:
            call = self._calls.popleft()
            name = identity_of(call.message)
            if name in batch:
                later.append(call)
            elif not call.future.cancelled():
                batch[name] = call
        self._calls.extendleft(reversed(later))
        # Sorted, so that transactions over the same messages wait for each other and never lock each other out.
        return [batch[name] for name in sorted(batch)]

    def _process(self, batch: list[_Call]) -> None:
        try:
            self._commit(batch)
        except _NotBegun as error:
            self._disconnect()
            _fail(batch, error.__cause__)
        except BaseException as error:  # `sys.exit()` of the handler would end the thread alone
            self._disconnect()
            if len(batch) == 1:
                _fail(batch, error)
                return
            for number, call in enumerate(batch):
                call.verdict = call.error = None
                try:
                    self._commit([call])
                except _NotBegun as refused:
                    self._disconnect()
                    _fail(batch[number:], refused.__cause__)
                    return
                except BaseException as failed:
                    self._disconnect()
                    _fail([call], failed)

    def _commit(self, batch: list[_Call]) -> None:
        """One transaction. Raises `_NotBegun`, and what the database raises at its end."""
        inbox = self._inbox
        with ExitStack() as stack:
            try:
                connection = self._connected()
                stack.enter_context(inbox.transaction(connection))
            except Exception as error:
                raise _NotBegun from error
            fresh = inbox.first_times(connection, [call.message for call in batch])
            for call, is_fresh in zip(batch, fresh, strict=True):
                if is_fresh:
                    self._call(connection, call)

    def _call(self, connection: C, call: _Call) -> None:
        try:
            with self._inbox.savepoint(connection):
                try:
                    with self._guard:
                        call.verdict = self._handle(connection, call.message)
                except BaseException as error:  # SystemExit would end the thread, and with it every call
                    call.error = error if isinstance(error, Exception) else InboxError(f"handler: {error!r}")
                    raise _Undone from None
                # A dropped message too: until its dead letter is confirmed it can come again, to be dropped again.
                if verdict_of(call.verdict).kind is not Kind.ACK:
                    raise _Undone
        except _Undone:
            self._inbox.forget(connection, call.message)
        except InboxError:
            if call.error is not None:
                # It ended the transaction, and with it what the batch wrote before.
                raise call.error from None
            raise

    def _connected(self) -> C:
        """The connection, without a transaction under way: one within it would be a savepoint, and never committed."""
        if self._connection is None:
            self._connection = self._connect()
            if hasattr(self._connection, "fileno"):
                own(self._connection.fileno())  # a child would hold the locks of its transaction
        self._inbox.settle(self._connection)
        return self._connection

    def _close(self) -> None:
        """In the thread."""
        while self._calls:
            self._commit_batch()
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it is broken
                connection.close()  # type: ignore[attr-defined]  # every DB-API connection (PEP 249) has it


def _fail(calls: list[_Call], error: BaseException | None) -> None:
    for call in calls:
        call.verdict = None
        call.error = _as_exception(error)


def _as_exception(error: BaseException | None) -> Exception:
    return error if isinstance(error, Exception) else InboxError(repr(error))
