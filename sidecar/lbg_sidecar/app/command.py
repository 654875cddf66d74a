"""An application that is a command: one line of JSON in for each message, one line out.

The command runs once and for long. It gets the messages on its standard input, up to `concurrency` of them before
it has answered any, and answers in any order: ``{"id": …, "verdict": "ack" | "retry" | "drop", "reason": …,
"after_s": …}``. Its first line may be ``{"processed": …}`` instead (`app.channel`).
What it writes to its standard error goes to the member's. When its input ends it should end.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import shlex
import signal
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from lbg_core.client.backoff import Backoff
from lbg_core.redaction import without_passwords
from lbg_sidecar.app.channel import AppChannel, Calls, Extension, parse_answer, parse_first_line
from lbg_sidecar.app.cloudevents import message_json
from lbg_sidecar.core.limits import ConcurrencyLimit
from lbg_sidecar.core.state_log import AttemptLog
from lbg_sidecar.errors import CommandFailed
from lbg_sidecar.message import INTERRUPTED, Message, Verdict, retry

UP_S = 1.0
"""A command that has lived this long, or has answered, is up again."""

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

READ_BYTES = 256 * 1024


class _Pipes(SubprocessStreamProtocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=READ_BYTES, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class CommandProcess(Process):
    """`exited` is set when it has ended, also while a process that it left behind has its pipes, for which `wait`
    waits. `close_pipes` closes them here."""

    def __init__(
        self, transport: asyncio.SubprocessTransport, pipes: _Pipes, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(transport, pipes, loop)
        self.exited = pipes.exited
        self._close = transport.close

    def close_pipes(self) -> None:
        assert self.stdin is not None
        if self.stdin.transport.get_write_buffer_size():
            self.stdin.transport.abort()  # `close` would wait until somebody reads it
        self._close()


async def spawn(command: Sequence[str]) -> CommandProcess:
    """With pipes to its standard input and output, and without the passwords of our own variables. Raises
    CommandFailed when it cannot be started at all."""
    loop = asyncio.get_running_loop()
    try:
        transport, pipes = await loop.subprocess_exec(
            lambda: _Pipes(loop),
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=None,
            start_new_session=True,  # a process group of its own, to be killed as a whole
            preexec_fn=_die_with(os.getpid()),
            env=without_passwords(os.environ),
        )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise CommandFailed(shlex.join(command), why) from error
    return CommandProcess(transport, pipes, loop)


def signal_group(process: Process, number: signal.Signals) -> None:
    """To the command and everything it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def has_ended(process: CommandProcess, within_s: float) -> bool:
    """End its input and, after half of the time, send SIGTERM to the group; returns when it has ended, or then."""
    assert process.stdin is not None
    process.stdin.close()
    await _wait_for_end(process, within_s / 2)
    if process.returncode is None:
        signal_group(process, signal.SIGTERM)
        await _wait_for_end(process, within_s / 2)
    return process.returncode is not None


async def _wait_for_end(process: CommandProcess, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await process.exited.wait()


def described(status: int) -> str:
    """Description of how the process ended."""
    if status < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def _die_with(parent: int) -> Callable[[], None] | None:
    """On Linux the command is killed when the member is, also by SIGKILL: what it holds is delivered elsewhere."""
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return before_exec


log = logging.getLogger("lbg.member")

LINE_MAX_BYTES = 1024 * 1024
INPUT_MAX_BYTES = 1024 * 1024
"""No message is written while the command has left more than this unread: it would only be memory."""

RESTART = Backoff(first_s=0.1, max_s=10.0, jitter=0.2)
STEADY_S = 10.0
"""A command that lived this long did not fail to start: the next restart is prompt again."""

KILL_S = 0.2
"""For the end of a command that was killed to be seen."""

REST_S = 1.0
"""For the rest of the output of a command that has ended, whose output another process has, too."""

DOWN_GRACE_S = 5.0
"""A command that answers nothing for this long after it died is not ready: its queues are with others meanwhile."""


class CommandChannel(AppChannel):
    """Runs `command`; starts it anew when it dies, with a growing wait, and after an abort.

    A single call cannot be stopped, so an abort kills it with its process group. The calls that fall with
    it, and were not to be aborted, are made again.
    """

    limit = ConcurrencyLimit

    def __init__(
        self,
        command: Sequence[str],
        *,
        concurrency: int,
        uniform: Callable[[], float] = lambda: 0.5,
        down_grace_s: float = DOWN_GRACE_S,
    ) -> None:
        self.command = tuple(command)
        self.concurrency = concurrency
        self._uniform = uniform
        self._calls: Calls | None = None
        self._down_grace_s = down_grace_s
        self._is_ready = True
        self._down: asyncio.TimerHandle | None = None
        self._process: CommandProcess | None = None
        self._running: dict[str, Message] = {}
        self._killed = False  # by the member: not a failure of the command
        self._has_spoken = False  # in this life
        self._stopping = False
        self._life: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._starts = 0
        self._unreadable = 0
        self._restarts = AttemptLog()

    async def start(self, calls: Calls) -> None:
        self._calls = calls
        self._process = await self._spawn()
        self._life = asyncio.get_running_loop().create_task(self._live(self._process))
        self.wake()

    def wake(self) -> None:
        process, calls = self._process, self._calls
        if process is None or calls is None or self._killed or self._draining is not None:
            return
        stdin = process.stdin
        assert stdin is not None
        if stdin.is_closing():  # the command has closed its input, or has ended
            return
        lines = []
        size = 0
        while len(self._running) < self.concurrency and size < INPUT_MAX_BYTES:
            message = calls.take()
            if message is None:
                break
            if (line := self._line(message)) is not None:
                self._running[message.id] = message
                size += len(line)
                lines.append(line)
        if lines:
            stdin.write(b"".join(lines))
            if stdin.transport.get_write_buffer_size() > INPUT_MAX_BYTES:
                self._draining = asyncio.get_running_loop().create_task(self._drain(stdin))

    def _line(self, message: Message) -> bytes | None:
        """None for one that cannot be sent now, which is a failed attempt."""
        why = "another message with its id is with the command"
        if message.id not in self._running:
            try:
                return message_json(message).encode() + b"\n"
            except OSError as error:
                why = f"its body cannot be read: {error}"
        asyncio.get_running_loop().call_soon(self._end, message, retry(why))
        return None

    def abort(self, messages: Collection[Message]) -> None:
        running = {message.in_flight for message in self._running.values()}
        if any(message.in_flight in running for message in messages):
            self._kill()

    def withdraw(self, messages: Collection[Message], *, reassigned: bool) -> None:
        """Does nothing: the command has begun every message, and a kill would repeat other members' messages."""

    async def stop(self, grace_s: float) -> None:
        self._stopping = True
        self._calls = None
        self._stop_down()
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        process = self._process
        if process is not None and not self._killed and not await has_ended(process, grace_s - KILL_S):
            log.warning("the command did not end when its input did, nor on SIGTERM: killing it")
            self._kill()
        if self._life is not None:
            if self._process is None:
                self._life.cancel()
            # Its last answers are still read; a child that has left the command's group may hold the pipe open.
            await asyncio.wait([self._life], timeout=max(until - loop.time(), KILL_S))
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)

    def describe(self) -> dict[str, object]:
        return {
            "channel": "command",
            "command": shlex.join(self.command),
            "pid": self._process.pid if self._process is not None else None,
            "starts": self._starts,
            "running": len(self._running),
        }

    async def _live(self, process: CommandProcess) -> None:
        """Read one life after another, until stopped."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began_at = loop.time()
            self._has_spoken = False
            up = loop.call_later(UP_S, self._proved)
            await self._read_while_used(process)
            await process.exited.wait()
            process.close_pipes()  # what it left behind may have them
            status = await process.wait()
            up.cancel()
            self._process = None
            killed, self._killed = self._killed, False
            if self._draining is not None:
                self._draining.cancel()
                self._draining = None
            fallen = len(self._running)
            self._end_all(INTERRUPTED if killed else retry(f"the command ended: {described(status)}"))
            if self._stopping:
                return
            if killed:
                failures = 0
                self._log_restart("the command was killed to abort a call", fallen)
            else:
                failures = 1 if loop.time() - began_at >= STEADY_S else failures + 1
                if self._down is None:
                    self._down = loop.call_later(self._down_grace_s, self._report_ready, False)
                wait_s = RESTART.delay_s(failures, self._uniform)
                self._log_restart(f"the command ended: {described(status)}", fallen)
                await asyncio.sleep(wait_s)
            process = await self._respawn()
            self._process = process
            self.wake()

    def _log_restart(self, why: str, fallen: int) -> None:
        line = self._restarts.failed(
            why, asyncio.get_running_loop().time(), text=f"{why}; the command is started again"
        )
        if line is not None:
            log.warning("%s; calls that ended with it: %d", line, fallen)

    async def _respawn(self) -> CommandProcess:
        failures = 0
        while True:
            try:
                return await self._spawn()
            except CommandFailed as error:
                failures += 1
                wait_s = RESTART.delay_s(failures, self._uniform)
                line = self._restarts.failed(str(error), asyncio.get_running_loop().time())
                if line is not None:
                    log.error("%s; trying again in %.1f s", line, wait_s)
                await asyncio.sleep(wait_s)

    async def _spawn(self) -> CommandProcess:
        self._starts += 1
        return await spawn(self.command)

    async def _read_while_used(self, process: CommandProcess) -> None:
        """To the end of its output. Of a command that has ended, and whose input nobody reads any more, that may never
        come: what it left behind may have its output."""
        loop = asyncio.get_running_loop()
        reading, gone = loop.create_task(self._read(process)), loop.create_task(self._is_gone(process))
        try:
            await asyncio.wait((reading, gone), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                await asyncio.wait((reading,), timeout=REST_S)
                process.close_pipes()
            await reading
        finally:
            reading.cancel()
            gone.cancel()

    async def _is_gone(self, process: CommandProcess) -> None:
        """Returns when it has ended, and was killed or its input has no reader any more."""
        assert process.stdin is not None
        await process.exited.wait()
        if not self._killed:
            with suppress(ConnectionError):
                await process.stdin.wait_closed()

    async def _read(self, process: CommandProcess) -> None:
        assert process.stdout is not None
        rest = b""
        while chunk := await process.stdout.read(READ_BYTES):
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            for line in lines:
                if line.strip():
                    self._answer(line)
            if len(rest) > LINE_MAX_BYTES:
                self._complain(rest)
                rest = b""
            self.wake()
        if rest.strip():
            self._answer(rest)

    def _answer(self, line: bytes) -> None:
        is_first, self._has_spoken = not self._has_spoken, True
        try:
            if is_first and self._calls is not None and (streams := parse_first_line(line)) is not None:
                self._calls.processed(streams)
                return
            name, answer = parse_answer(line)
        except ValueError as error:
            self._complain(line, error)
            return
        message = self._running.get(name)
        if message is None:
            self._complain(line, ValueError("no message with this id is waiting for a verdict"))
            return
        if isinstance(answer, Extension):
            message.extend(*answer)
            return
        del self._running[name]
        if self._calls is not None:
            self._proved()
            self._calls.end(message, answer)

    def _proved(self) -> None:
        """It has lived long enough, or answered."""
        self._stop_down()
        if not self._is_ready:
            self._report_ready(True)

    def _stop_down(self) -> None:
        if self._down is not None:
            self._down.cancel()
            self._down = None

    def _report_ready(self, is_ready: bool) -> None:
        self._is_ready = is_ready
        if self._calls is not None:
            why = f"the command ends repeatedly: {shlex.join(self.command)}"
            self._calls.ready(is_ready, "" if is_ready else why)

    def _complain(self, line: bytes, error: ValueError | None = None) -> None:
        # Once per life of the member: a command that prints its log to stdout would fill ours with it.
        self._unreadable += 1
        if self._unreadable == 1:
            shown = line[:120].decode("utf-8", "replace")
            why = error or f"a line of more than {LINE_MAX_BYTES} bytes"
            log.warning(
                "the command wrote a line that is not a verdict: %s: %r. It must write one line of JSON for each "
                "message, and anything else to its standard error; more such lines are ignored silently",
                why,
                shown,
            )

    def _end_all(self, verdict: Verdict) -> None:
        running, self._running = self._running, {}
        for message in running.values():
            self._end(message, verdict)

    def _end(self, message: Message, verdict: Verdict) -> None:
        if self._calls is not None:
            self._calls.end(message, verdict)

    async def _drain(self, stdin: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await stdin.drain()
        self._draining = None
        self.wake()

    def _kill(self) -> None:
        if self._process is not None and not self._killed:
            self._killed = True
            signal_group(self._process, signal.SIGKILL)
            if self._process.exited.is_set():
                self._process.close_pipes()
