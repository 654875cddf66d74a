"""An application in this process: a function that is called with each message."""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import Generic, TypeVar

from lbg_core.counted_nouns import counted
from lbg_core.forks import ForkGuard
from lbg_sidecar.app.channel import REQUESTED_AGAIN, AppChannel, Calls, parse_committed, parse_processed
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.state_log import AttemptLog
from lbg_sidecar.errors import AppError
from lbg_sidecar.message import INTERRUPTED, Message, Verdict, retry, verdict_of

log = logging.getLogger("lbg.member")

AsyncHandler = Callable[[Message], Awaitable[Verdict | None]]
SyncHandler = Callable[[Message], Verdict | None]
H = TypeVar("H")

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None]

REQUEST_EVERY_S = 1.0

CALLS_PER_TURN = 64
"""Calls that return at once, one after another, before the event loop gets its turn: about a millisecond."""


def handler_channel(handler: AsyncHandler | SyncHandler, *, concurrency: int) -> AppChannel:
    """A channel to a function.

    None or `ACK` acknowledges, `retry` and `drop` are verdicts, an exception is a retry with its text as the reason.
    A coroutine function runs in the member's event loop. Any other runs in threads, so that it may block; such a
    call cannot be aborted: its slot and its key are occupied until it returns.

    The method `processed` of an object, a coroutine function or not, is called once, when the member starts, and
    returns what it has processed (`app.channel`); a plain one runs in the event loop's thread. In mode Sessions the
    method `committed` is called likewise, with the name of the session, and returns the last sequence number that it
    has committed, or a pair of that and its message's `session_epoch`.
    """
    call = getattr(handler, "__call__", handler)  # noqa: B004 (an object with an async __call__ counts too)
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call):
        return _CoroutineChannel(handler, concurrency=concurrency)  # type: ignore[arg-type]  # asked just above
    return _ThreadChannel(handler, concurrency=concurrency)  # type: ignore[arg-type]  # asked just above


class NotCalled(Exception):
    """The call ends with this verdict of a channel, which has none of the application."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


class FailedCalls:
    """Verdicts on exceptions of a handler, and few tracebacks of them: of each place that raises one at once, and while
    it goes on raising at growing intervals. The message is in the member's line about the failed call."""

    def __init__(self) -> None:
        self._attempts = AttemptLog()
        self._lock = threading.Lock()

    def waited_for(self, count: int) -> None:
        """Calls that were to be aborted cannot be stopped."""
        text = (
            f"{counted(count, 'call')} of a blocking handler cannot be stopped: waiting for "
            f"{'it' if count == 1 else 'them'}"
        )
        self._warn("cannot be stopped", text=text)

    def worker_ended(self, error: BaseException) -> None:
        """A worker ended with this error, and another one has taken its place."""
        text = f"a worker of the handler ended with {type(error).__name__}, and another one was started"
        self._warn(text, (type(error), error, error.__traceback__))

    def verdict(self, error: BaseException) -> Verdict:
        trace = error.__traceback__
        trace = trace.tb_next if trace is not None else None  # without the frame of the channel
        last = trace
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        where = "" if last is None else f" at {last.tb_frame.f_code.co_filename}:{last.tb_lineno}"
        self._warn(f"the handler raised {type(error).__name__}{where}", (type(error), error, trace))
        return retry(f"{type(error).__name__}: {_text_of(error)}")

    def _warn(self, cause: str, raised: ExceptionInfo | None = None, *, text: str = "") -> None:
        with self._lock:
            line = self._attempts.failed(cause, time.monotonic(), text=text)
        if line is not None:
            log.warning("%s", line, exc_info=raised)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as fault:  # the error's own
        return f"its text cannot be made: {type(fault).__name__}"


class _HandlerChannel(AppChannel, Generic[H]):
    """A channel to a function of this process, whose object may report positions that it committed itself."""

    runs_in_process = True

    def __init__(self, handler: H, *, concurrency: int) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._calls: Calls | None = None
        self._guard: ForkGuard
        self._failed_calls = FailedCalls()
        self._request: asyncio.Task[None] | None = None

    async def start(self, calls: Calls) -> None:
        await self._report_positions(calls)
        self._calls = calls
        self._guard = ForkGuard()

    def request_position(self) -> bool:
        if self._calls is not None:
            self._calls.ready(False, REQUESTED_AGAIN)
            if self._request is not None:
                self._request.cancel()
            self._request = asyncio.get_running_loop().create_task(self._request_position(self._calls))
        return True

    async def stop(self, grace_s: float) -> None:
        if self._request is not None:
            self._request.cancel()

    async def _request_position(self, calls: Calls) -> None:
        while True:
            try:
                await self._report_positions(calls)
            except AppError as error:
                log.warning("%s; trying again in %g s", error, REQUEST_EVERY_S)
                await asyncio.sleep(REQUEST_EVERY_S)
            else:
                calls.ready(True)
                return

    async def _report_positions(self, calls: Calls) -> None:
        """Raises AppError."""
        try:
            processed = getattr(self._handler, "processed", None)
            if processed is not None:
                calls.processed(parse_processed(await _awaited(processed())))
            committed = getattr(self._handler, "committed", None)
            if committed is not None and calls.session is not None:
                calls.committed(*parse_committed(await _awaited(committed(calls.session))))
        except Exception as error:
            raise AppError(
                f"the handler failed to return its processed positions: {type(error).__name__}: {error}"
            ) from error


async def _awaited(answer: object) -> object:
    return await answer if inspect.isawaitable(answer) else answer


class _CoroutineChannel(_HandlerChannel[AsyncHandler]):
    """A fixed number of worker tasks: a call costs no task of its own, and has one to be cancelled with.

    A task that was cancelled is not used for another call: what is left of the cancellation would end that one, or the
    worker (cpython#116720). Whatever ends a worker while the member runs, another one takes its place.
    """

    def __init__(self, handler: AsyncHandler, *, concurrency: int) -> None:
        super().__init__(handler, concurrency=concurrency)
        self._workers: set[asyncio.Task[None]] = set()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._running: dict[InFlight, tuple[Message, asyncio.Task[None]]] = {}
        self._aborted: set[InFlight] = set()
        self._waking = False  # a worker has been woken: it takes a call, and wakes the next
        self._stopping = False

    async def start(self, calls: Calls) -> None:
        await super().start(calls)
        for _ in range(self._concurrency):
            self._start_worker(calls)

    def _start_worker(self, calls: Calls) -> None:
        worker = asyncio.get_running_loop().create_task(self._work(calls))
        self._workers.add(worker)
        worker.add_done_callback(lambda worker: self._worker_ended(worker, calls))

    def _worker_ended(self, worker: asyncio.Task[None], calls: Calls) -> None:
        self._workers.discard(worker)
        error = asyncio.CancelledError() if worker.cancelled() else worker.exception()
        if self._stopping or isinstance(error, KeyboardInterrupt | SystemExit):
            return  # the process ends with these
        self._start_worker(calls)
        if error is None:
            return  # its task was cancelled, and the call that ran has ended
        self._failed_calls.worker_ended(error)
        for message in [message for message, task in self._running.values() if task is worker]:
            del self._running[message.in_flight]
            self._aborted.discard(message.in_flight)
            calls.end(message, self._failed_calls.verdict(error))

    def wake(self) -> None:
        idle = self._idle
        while idle and not self._waking:
            waiting = idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                self._waking = True

    def abort(self, messages: Collection[Message]) -> None:
        for message in messages:
            running = self._running.get(message.in_flight)
            if running is not None and message.in_flight not in self._aborted:
                self._aborted.add(message.in_flight)
                running[1].cancel()

    async def stop(self, grace_s: float) -> None:
        self._stopping = True
        await super().stop(grace_s)
        for task in self._workers:
            task.cancel()
        if self._workers:
            await asyncio.wait(self._workers, timeout=grace_s)

    def describe(self) -> dict[str, object]:
        return {"channel": "coroutine", "running": len(self._running)}

    async def _work(self, calls: Calls) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        running, aborted, in_turn = self._running, self._aborted, 0
        while not (self._stopping or task.cancelling()):
            message = calls.take()
            if message is None:
                waiting = loop.create_future()
                self._idle.append(waiting)
                try:
                    await waiting
                finally:
                    self._waking = False
                in_turn = 0
                continue
            if self._idle and calls.more():
                self.wake()  # this handler may suspend: the next message need not wait for it
            running[message.in_flight] = message, task
            verdict = await self._call(message)
            del running[message.in_flight]
            if aborted:
                aborted.discard(message.in_flight)
            calls.end(message, verdict)
            in_turn += 1
            if in_turn >= CALLS_PER_TURN:
                in_turn = 0
                await asyncio.sleep(0)

    async def _call(self, message: Message) -> Verdict:
        try:
            with self._guard:
                if message.span is None:
                    return verdict_of(await self._handler(message))
                with message.span.current():
                    return verdict_of(await self._handler(message))
        except asyncio.CancelledError as error:
            if self._stopping:
                raise
            if message.in_flight in self._aborted:
                return INTERRUPTED
            return self._failed_calls.verdict(error)  # the handler's own: something it awaited was cancelled
        except NotCalled as error:
            return error.verdict
        except Exception as error:
            return self._failed_calls.verdict(error)


class _ThreadChannel(_HandlerChannel[SyncHandler]):
    """As many threads as calls may run; results come back to the loop in batches."""

    def __init__(self, handler: SyncHandler, *, concurrency: int) -> None:
        super().__init__(handler, concurrency=concurrency)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._results: deque[tuple[Message, Verdict]] = deque()
        self._collecting = False
        self._threads: list[threading.Thread] = []
        self._alive = concurrency
        self._ended = asyncio.Event()
        self._running = 0

    async def start(self, calls: Calls) -> None:
        await super().start(calls)
        self._loop = asyncio.get_running_loop()
        # Daemons: a handler that never returns must not prevent the end of the process.
        self._threads = [
            threading.Thread(target=self._work, name=f"lbg-handler-{number}", daemon=True)
            for number in range(self._concurrency)
        ]
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        if self._calls is None:
            return
        while self._running < self._concurrency:
            message = self._calls.take()
            if message is None:
                return
            self._running += 1
            self._inbox.put(message)

    def abort(self, messages: Collection[Message]) -> None:
        """A thread cannot be stopped. The call occupies its slot and its key until it returns."""
        if messages:
            self._failed_calls.waited_for(len(messages))

    async def stop(self, grace_s: float) -> None:
        self._calls = None
        await super().stop(grace_s)
        for _ in self._threads:
            self._inbox.put(None)
        if self._threads:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._ended.wait()

    def describe(self) -> dict[str, object]:
        return {"channel": "threads", "running": self._running}

    def _thread_ended(self) -> None:
        self._alive -= 1
        if not self._alive:
            self._ended.set()

    def _work(self) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed: results are of no use any more
            self._answer(self._loop)
            self._loop.call_soon_threadsafe(self._thread_ended)

    def _answer(self, loop: asyncio.AbstractEventLoop) -> None:
        while (message := self._inbox.get()) is not None:
            try:
                with self._guard, nullcontext() if message.span is None else message.span.current():
                    verdict = verdict_of(self._handler(message))
            except BaseException as error:  # `sys.exit()` would end the thread alone
                verdict = self._failed_calls.verdict(error)
            self._results.append((message, verdict))
            del message  # a thread that waits must occupy no body's memory
            if not self._collecting:
                self._collecting = True
                loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        # Cleared first: a later result schedules a collection of its own.
        self._collecting = False
        while self._results:
            message, verdict = self._results.popleft()
            self._running -= 1
            if self._calls is not None:
                self._calls.end(message, verdict)
        self.wake()
