"""Group commit: batches from the core to the disk, and back-pressure on clients ahead of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from lbg_broker.core.commands import Command, Committed, StoreBlocked
from lbg_broker.core.effects import StoreBatch
from lbg_broker.core.machine import Broker
from lbg_broker.store import Committer, DiskFullError, Store, StoreError
from lbg_broker.store.store import Outcome


class Reader(Protocol):
    """A connection whose reads can be paused."""

    def pause_reading(self, reason: str) -> None: ...

    def resume_reading(self, reason: str) -> None: ...


class BackPressure:
    """Counts the bytes that were read and are not written yet. Above `limit_bytes` the connection
    is not read from until half of that is left."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._gathered_bytes = 0  # for the next batch
        self._handed_bytes = 0  # in the batch being written
        self._paused: set[Reader] = set()

    @property
    def waiting_bytes(self) -> int:
        """Bytes read and not known to be on disk."""
        return self._gathered_bytes + self._handed_bytes

    def read(self, reader: Reader, size: int) -> None:
        """Counts bytes that were read from a connection."""
        self._gathered_bytes += size
        if self.waiting_bytes > self._limit_bytes:
            self.pause((reader,))

    def pause(self, readers: Iterable[Reader]) -> None:
        """Pauses reads from these."""
        for reader in readers:
            self._paused.add(reader)
            reader.pause_reading("disk")

    def handed_over(self) -> None:
        """Notes that what was gathered is being written."""
        self._handed_bytes, self._gathered_bytes = self._gathered_bytes, 0

    def written(self) -> None:
        """Notes that what was handed over is on disk."""
        self._handed_bytes = 0
        self._release()

    def unwritten(self) -> None:
        """All that was gathered went through without touching the disk."""
        self._gathered_bytes = 0
        self._release()

    def forget(self, reader: Reader) -> None:
        """Forgets a connection that is closed."""
        self._paused.discard(reader)

    def _release(self) -> None:
        if self._paused and self.waiting_bytes <= self._limit_bytes // 2:
            paused, self._paused = self._paused, set()
            for reader in paused:
                reader.resume_reading("disk")


log = logging.getLogger("lbg.broker")


class GroupCommit:
    """Hands the core's batches to the store and reports the results to the core, through `apply`.

    When the disk has no room, publishes stay in the core and nothing of them is confirmed, while what frees room is
    written on the store's reserve; every `retry_s` it is tried whether all fits. `failed` holds the error after which
    nothing is written any more.
    """

    def __init__(
        self,
        broker: Broker,
        store: Store,
        *,
        pacing: BackPressure,
        apply: Callable[[Command], None],
        on_failed: Callable[[StoreError], None],
        retry_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._broker = broker
        self._back_pressure = pacing
        self._apply = apply
        self._on_failed = on_failed
        self._retry_s = retry_s
        self._in_flight: StoreBatch | None = None
        self._in_flight_since = 0.0
        self._closing = False
        self._trial_due = False
        self._reserve_is_used_up = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.failed: asyncio.Future[StoreError] = self._loop.create_future()
        self._store = store
        self._committer = Committer(store, self._on_done)

    def commit(self) -> None:
        """Hand over what changed, if the store is idle."""
        if self._in_flight is not None or self._closing or self.failed.done():
            return
        if self._broker.state.blocked_reason is None:
            batch = self._broker.seal()
        else:
            batch = self._broker.seal(on_reserve=not self._trial_due, trial=self._trial_due)
            self._trial_due = False
        if batch is None:
            self._back_pressure.unwritten()
        else:
            self._submit(batch)

    @property
    def writing_for_s(self) -> float:
        """Seconds for which the current batch has been written; 0 if there is none."""
        return 0.0 if self._in_flight is None else self._loop.time() - self._in_flight_since

    async def committed(self) -> None:
        """Until everything that changed up to now is on disk. Raises `StoreError` when it never will be."""
        if self.failed.done():
            raise self.failed.result()
        if self._broker.has_changes:
            number = self._broker.state.batch.number
        elif self._in_flight is not None:
            number = self._in_flight.number
        else:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append((number, waiter))
        await waiter

    async def close(self, *, timeout_s: float) -> None:
        """Write the last batch and close the store. On a full disk it has all but the publishes, which are not
        confirmed."""
        self._closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
            while not self.failed.done():
                is_full = self._broker.state.blocked_reason is not None
                final = self._broker.seal(final=True, on_reserve=is_full)
                if final is None:
                    break
                self._submit(final)
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()
                if is_full or self._broker.state.blocked_reason is None:
                    break
        await self._loop.run_in_executor(None, self._committer.stop)

    def _submit(self, batch: StoreBatch) -> None:
        self._back_pressure.handed_over()
        self._in_flight, self._in_flight_since = batch, self._loop.time()
        self._idle.clear()
        self._committer.submit(batch)

    def _on_done(self, batch: StoreBatch, outcome: Outcome) -> None:
        """On the store's thread."""
        self._loop.call_soon_threadsafe(self._done, batch, outcome)

    def _done(self, batch: StoreBatch, outcome: Outcome) -> None:
        if isinstance(outcome, DiskFullError):
            self._full(batch, outcome)
        elif isinstance(outcome, StoreError):
            self._fail(outcome)
        else:
            self._in_flight = None
            self._reserve_is_used_up = False
            if self._broker.state.blocked_reason is not None and not batch.on_reserve:
                log.warning("the disk has room again")
                self._apply(StoreBlocked(None))
            self._apply(Committed(batch.number, outcome, self._store.is_low))
            self._back_pressure.written()
            self._idle.set()
            self._wake(batch.number, None)

    def _full(self, batch: StoreBatch, error: DiskFullError) -> None:
        if batch.on_reserve:
            if not self._reserve_is_used_up:
                self._reserve_is_used_up = True
                log.error("%s, and the reserve is used up: consumers wait too, until there is room", error)
            self._loop.call_later(self._retry_s, self._committer.submit, batch)
            return
        if self._broker.state.blocked_reason is None:
            log.error("%s: publishers wait until there is room, consumers go on", error)
        self._in_flight = None
        self._apply(StoreBlocked("low on disk", batch, self._store.letter_bytes_max))
        self._back_pressure.written()
        self._idle.set()
        if not self._closing:
            self._loop.call_later(self._retry_s, self._try_again)

    def _try_again(self) -> None:
        self._trial_due = True
        self.commit()

    def _fail(self, error: StoreError) -> None:
        """The store cannot be trusted any more."""
        log.critical("the store failed, stopping: %s", error)
        self._in_flight = None
        if not self.failed.done():
            self.failed.set_result(error)
        self._on_failed(error)
        self._idle.set()
        self._wake(0, error)

    def _wake(self, number: int, error: StoreError | None) -> None:
        """Wakes the waiters for a batch."""
        waiters, self._waiters = self._waiters, []
        for awaited, waiter in waiters:
            if waiter.done():
                continue
            if error is not None:
                waiter.set_exception(error)
            elif awaited <= number:
                waiter.set_result(None)
            else:
                self._waiters.append((awaited, waiter))
