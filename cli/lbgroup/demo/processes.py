"""Processes of the demo: broker, group, publisher and members."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from lbg_broker.admin import ProvisioningError
from lbg_broker.admin.groups import create_group, delete_group
from lbg_broker.admin.live import LiveAdmin
from lbg_broker.admin.snapshot import UNKNOWN
from lbg_broker.client import BrokerAddress
from lbg_broker.group import EXCLUSIVE, SESSIONS, Engine, GroupSpec
from lbgroup.commands import CliError
from lbgroup.demo.model import DemoModel, MemberState
from lbgroup.demo.script import Do, Step
from lbgroup.demo.settings import DemoSettings
from lbgroup.options import management_of

LBG = (sys.executable, "-m", "lbgroup")
TERM_TIMEOUT_S = 5.0
LINE_MAX_BYTES = 8 * 1024 * 1024
"""The validator's report is one line, with every move in it."""

_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class DemoProcess:
    """One process. `is_expected_to_end` is set before the demo ends it on purpose."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    is_expected_to_end: bool = False
    readers: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """To the process and whatever it started."""
        if not self.is_running:
            return  # its number may be somebody else's by now
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def last_words(self) -> str:
        """The last line it wrote to standard error."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1] if lines else "it said nothing"


class ProcessGroup:
    """Every process of a demo. Leaving the block ends them all: politely first, unless by an exception."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._children: list[DemoProcess] = []
        # Loaded here: after the fork of a child nothing may be imported any more.
        self._die_with_parent = _die_with_parent() if sys.platform == "linux" else None

    async def __aenter__(self) -> ProcessGroup:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *args: object) -> None:
        running = [child for child in self._children if child.is_running] if kind is None else []
        for child in running:
            child.is_expected_to_end = True
            child.signal(signal.SIGTERM)
        ending = [asyncio.ensure_future(child.process.wait()) for child in running]
        if ending:
            await asyncio.wait(ending, timeout=TERM_TIMEOUT_S)
        for child in self._children:
            child.signal(signal.SIGKILL)
            await child.process.wait()
            for reader in child.readers:
                reader.cancel()

    async def start(
        self,
        name: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> DemoProcess:
        """Start `lbg ARGUMENTS`; `on_line` gets each line of its standard output."""
        log = self._directory / f"{name}.log"
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *LBG,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if on_line else asyncio.subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
                limit=LINE_MAX_BYTES,
                start_new_session=True,
                preexec_fn=self._die_with_parent,
            )
        child = DemoProcess(name, process, log)
        if on_line is not None:
            child.readers.append(asyncio.ensure_future(_read_lines(process, on_line)))
        self._children.append(child)
        return child

    def check(self) -> None:
        """Raises CliError for a child that ended on its own with an error."""
        for child in self._children:
            unread = any(not reader.done() for reader in child.readers)
            if not child.is_running and child.process.returncode and not (child.is_expected_to_end or unread):
                raise CliError(
                    f"{child.name} ended with status {child.process.returncode}: {child.last_words()}"
                )


async def _read_lines(process: asyncio.subprocess.Process, on_line: Callable[[str], None]) -> None:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        on_line(line.decode("utf-8", "replace"))


def _die_with_parent() -> Callable[[], None]:
    """Linux: have the kernel kill the child when the demo is killed itself (prctl(2), PR_SET_PDEATHSIG)."""
    libc = ctypes.CDLL(None)

    def ask_kernel() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))

    return ask_kernel


def lbg_arguments(*parts: str | Sequence[str] | None) -> list[str]:
    """A command line; None is left out, sequences are spread."""
    arguments: list[str] = []
    for part in parts:
        if part is not None:
            arguments += [part] if isinstance(part, str) else part
    return arguments


LEAVE_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 60.0

Until = Callable[[Callable[[], bool], str], Coroutine[Any, Any, None]]


class MemberProcesses:
    """`common` are arguments of every command, `login` the environment of members, `admin` that of who may close a
    session; `until` waits for a condition."""

    def __init__(
        self,
        settings: DemoSettings,
        scene: DemoModel,
        children: ProcessGroup,
        *,
        common: list[str],
        login: Mapping[str, str],
        admin: Mapping[str, str],
        until: Until,
    ) -> None:
        self._settings = settings
        self._scene = scene
        self._children = children
        self._common = common
        self._login = login
        self._admin = admin
        self._until = until
        self._members: dict[str, DemoProcess] = {}

    async def perform(self, step: Step) -> None:
        name = step.member
        match step.do:
            case Do.START:
                await self.start(name)
            case Do.KILL:
                child = self._members[name]
                child.is_expected_to_end = True
                at_us = time.time_ns() // 1000
                child.signal(signal.SIGKILL)
                self._scene.lives(name, MemberState.KILLED, at_us=at_us)
            case Do.LEAVE:
                self._scene.lives(name, MemberState.LEAVING)
                self._members[name].signal(signal.SIGTERM)
                await self._gone(name, LEAVE_TIMEOUT_S)
            case Do.CLOSE:
                await self._close_session(name)
                await self._gone(name, CLOSE_TIMEOUT_S)

    async def start(self, name: str) -> None:
        """Returns when it is a member."""
        settings = self._settings
        self._scene.lives(name, MemberState.STARTING)
        options = ["--concurrency", str(settings.concurrency), "--work", f"{settings.work_s:g}"]
        if settings.mode == EXCLUSIVE:
            options += ["--rebalance-delay", f"{settings.rebalance_delay_s:g}"]
        if settings.mode == SESSIONS:
            options += [
                "--commits",
                str(settings.directory / "commits"),
                "--prefetch",
                str(settings.session_prefetch),
            ]
        if settings.journal is not None:
            options += ["--journal", str(settings.journal)]
        self._members[name] = await self._children.start(
            name,
            *("consume", *self._common, "--name", name, "--republish", "--quiet", *options),
            environment=self._login,
        )
        await self._until(lambda: self._scene.members[name].life is MemberState.LIVE, f"{name} to join")

    async def leave(self) -> None:
        """All that are still there."""
        for name, child in self._members.items():
            if child.is_running:
                await self.perform(Step(Do.LEAVE, name))

    async def _close_session(self, name: str) -> None:
        self._scene.lives(name, MemberState.LEAVING, why="is given nothing more")
        closing = await self._children.start(
            f"close-{name}",
            *("group", "close", *self._common[1:], "--session", name),
            environment=self._admin,
        )
        await closing.process.wait()

    async def _gone(self, name: str, within_s: float) -> None:
        child = self._members[name]
        try:
            async with asyncio.timeout(within_s):
                status = await child.process.wait()
        except TimeoutError:
            raise CliError(f"{name} did not leave within {within_s:g} s: {child.last_words()}") from None
        self._scene.lives(name, MemberState.LEFT if status == 0 else MemberState.FAILED)


START_TIMEOUT_S = 20.0
CLEAR_TIMEOUT_S = 30.0
LEFT_BEHIND = "`lbg group delete {} --force` with the same --broker and --management removes it"


async def start_broker(children: ProcessGroup, directory: Path) -> BrokerAddress:
    """An embedded broker with its data in `directory`. Raises CliError."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    broker = await children.start(
        "broker",
        *("broker", "serve", "--json", "--data-dir", str(directory)),
        *("--listen", "127.0.0.1:0", "--management", "127.0.0.1:0"),
        on_line=lambda line: None if ready.done() else ready.set_result(line),
    )
    ended = asyncio.ensure_future(broker.process.wait())
    await asyncio.wait((ready, ended), timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if not ready.done():
        raise CliError(f"the broker did not start: {broker.last_words()}")
    where = json.loads(ready.result())
    return BrokerAddress(
        (with_login(where["amqp"], "guest", "guest"),), (with_login(where["management"], "guest", "guest"),)
    )


@dataclass(slots=True)
class DemoBroker:
    """The demo's group on a broker for the length of the block; it is removed at the end, whatever the end is.

    Members and the publisher log in as the group's own user, who may touch nothing else; where no user can be made,
    because the management API is not there, as whoever `address` names. `note` is told that. Entering raises CliError
    where the group's name is taken, and what provisioning raises.
    """

    address: BrokerAddress
    spec: GroupSpec
    is_own_broker: bool
    note: Callable[[str], None] = lambda line: None
    engine: Engine | None = None
    urls: tuple[str, ...] = field(default=(), repr=False)
    """Of the broker, with the login of the group's user."""

    async def __aenter__(self) -> DemoBroker:
        group = self.spec.name
        self.urls = self.address.urls
        admin = LiveAdmin(self.address.places(), management_of(self.address))
        try:
            observed = await admin.observe(group)
            if not observed.is_empty:
                raise CliError(
                    f"there is a group {group!r} on this broker already: give the demo another name with --group; if "
                    f"a demo that was killed has left it, {LEFT_BEHIND.format(group)}"
                )
            self.engine = observed.engine
            if observed.users is UNKNOWN:
                self.note(f"no user of its own for the group: {'; '.join(observed.why.values())}")
                await create_group(admin, self.spec, with_user=False)
            else:
                password = secrets.token_urlsafe(16)
                await create_group(admin, self.spec, password=password)
                self.urls = tuple(
                    with_login(url, self.spec.client_username, password) for url in self.address.urls
                )
        finally:
            await admin.close()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_own_broker:
            return  # the group goes with its broker
        try:
            async with asyncio.timeout(CLEAR_TIMEOUT_S):
                await self._clear()
        except (TimeoutError, ProvisioningError, asyncio.CancelledError) as failed:
            why = str(failed) or "it took too long, or was interrupted"
            left = LEFT_BEHIND.format(self.spec.name)
            raise CliError(f"the demo's group could not be removed: {why}; {left}") from failed

    async def _clear(self) -> None:
        admin = LiveAdmin(self.address.places(), management_of(self.address))
        try:
            with_user = self.urls != self.address.urls
            await delete_group(admin, self.spec.name, force=True, with_user=with_user)
        finally:
            await admin.close()

    @property
    def where(self) -> str:
        """The engine with its version, and where it is, for a title."""
        assert self.engine is not None, "known once the block is entered"
        version = ".".join(map(str, self.engine.version))
        if self.is_own_broker:
            return f"embedded broker {version}"
        name = self.engine.product if self.engine.is_rabbitmq else "embedded broker"
        hosts = ", ".join(urlsplit(url).netloc.rpartition("@")[2] for url in self.address.urls)
        return f"{name} {version} at {hosts}"


def with_login(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}"))
