"""The embedded broker: sockets and store around the core.

Within one turn of the event loop every command is applied at once; at its end each connection's output is
written in one piece, and if the store is idle everything that changed goes to it as one batch.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lbg_broker.commit import BackPressure, GroupCommit
from lbg_broker.content_memory import MESSAGES_PER_CONNECTION, TICK_S, ContentMemory
from lbg_broker.core.commands import CloseConnection, Command, Received, Ticked
from lbg_broker.core.effects import Definition
from lbg_broker.core.errors import RestoreError
from lbg_broker.core.machine import Broker, Output
from lbg_broker.core.permissions import Users
from lbg_broker.core.state import State
from lbg_broker.logins import Logins
from lbg_broker.reload import Administrator, ServerTls, first_accounts, load_users, read_administrator
from lbg_broker.session import Session
from lbg_broker.settings import Address, ServerSettings, StartError
from lbg_broker.store import Store, StoreError
from lbg_broker.store.schema import STORE_FILE, DirectoryLock
from lbg_core.amqp import Event
from lbg_core.amqp.methods import Method
from lbg_core.peers import PeerLog, descriptors, is_of_here, listen_reason
from lbg_core.private_files import report_wide

log = logging.getLogger("lbg.broker")

TRIM_S: Final = 2.0
"""Between memory of messages that is freed and its return to the system, which takes 20 ms for 200 MiB."""

_malloc_trim: Final[Callable[[int], int] | None] = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc's: it returns free memory only from the end of its heap, and every small object that lives longer keeps all
in front of it."""


@dataclass(frozen=True, slots=True)
class OpenedBroker:
    broker: Broker
    users: Users
    store: Store


async def open_broker(
    data_dir: Path, administrator: Administrator | None, *, default_group: str
) -> OpenedBroker:
    """Raises `StoreError` and `RestoreError`."""
    store = await asyncio.to_thread(Store, data_dir / STORE_FILE)
    try:
        if store.short is not None:
            log.error(
                "%s: the disk has no room for the reserve that acknowledgements need, so consumers may wait too: "
                "free %d KiB, or let the volume grow",
                store.path.parent,
                store.target_bytes // 1024 + 1,
            )
        stored = await asyncio.to_thread(store.load)
        users = load_users(stored.definitions)
        accounts = first_accounts(users, administrator)
        broker = Broker(users, new_token=_new_token, stored=stored, default_group=default_group)
    except BaseException:
        store.close()
        raise
    for account in accounts:
        broker.define(account.kind, account.key, account.value)
    return OpenedBroker(broker, users, store)


def _new_token() -> str:
    return secrets.token_urlsafe(16)


class Server:
    """One broker. `start`, then `wait` for its end, or `stop` it."""

    broker: Broker
    users: Users
    logins: Logins
    loop: asyncio.AbstractEventLoop
    tls: ServerTls | None = None
    management_port: int | None = None

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.started_at = time.time()
        self._connections_max = min(settings.connections_max, descriptors() * 3 // 4)
        self._sessions: dict[int, Session] = {}
        self._next_number = 1
        self._speaking: dict[Session, None] = {}
        self._flush_scheduled = False
        self._back_pressure = BackPressure(settings.unwritten_max_bytes)
        connection_limit_bytes = MESSAGES_PER_CONNECTION * settings.message_max_bytes
        self.content_memory = ContentMemory(
            settings.incomplete_max_bytes,
            connection_limit_bytes,
            on_short=self._check_content_soon,
            on_freed=self._trim_soon,
        )
        self._trim: asyncio.TimerHandle | None = None
        self._stopping = False
        self._listener: asyncio.Server | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at: float | None = None
        self.peer_log = PeerLog(log)

    async def start(self) -> None:
        """Open the store and listen. Raises `StartError` with one clear line."""
        self.loop = asyncio.get_running_loop()
        settings = self.settings
        self.tls = ServerTls(settings.tls) if settings.tls else None
        administrator = read_administrator(settings.administrator) if settings.administrator else None
        try:
            self._lock = DirectoryLock(settings.data_dir)
        except StoreError as error:
            raise StartError(str(error)) from error
        report_wide(settings.data_dir)
        try:
            await self._open(administrator)
            self._listener = await self.loop.create_server(
                self.new_session,
                settings.listen.host,
                settings.listen.port,
                ssl=self.tls.context if self.tls else None,
                ssl_handshake_timeout=settings.handshake_timeout_s if self.tls else None,
                backlog=1024,
            )
        except (StartError, StoreError, RestoreError) as error:
            await self._abandon()
            raise StartError(str(error)) from error
        except OSError as error:
            await self._abandon()
            raise StartError(f"cannot listen on {settings.listen}: {listen_reason(error)}") from error
        log.info("listening on %s, data in %s", self.address, settings.data_dir)
        self.warn_of_plaintext("AMQP", settings.listen)

    def warn_of_plaintext(self, what: str, address: Address) -> None:
        """Log that passwords cross the network of a listener; nothing if it has TLS or is on loopback."""
        if self.tls is None and not is_of_here(f"//{address}"):
            log.warning(
                "%s on %s has no TLS: passwords and messages can be read on its network; use --certfile and "
                "--keyfile, or listen on 127.0.0.1",
                *(what, address),
            )

    async def wait(self) -> None:
        """Until the store fails for good. Raises its `StoreError`."""
        raise await asyncio.shield(self._commit.failed)

    async def stop(self, reason: str = "broker forced connection closure with reason 'shutdown'") -> None:
        """Close every connection (320), put everything on disk, and let the directory go."""
        if self._stopping:
            return
        self._stopping = True
        for timer in (self._alarm, self._trim):
            if timer is not None:
                timer.cancel()
        if self._listener is not None:
            self._listener.close()
        self.apply(CloseConnection(None, reason))
        for session in list(self._sessions.values()):
            if session.is_greeting:
                session.abort()
        for _ in range(int(self.settings.close_timeout_s / 0.01)):
            if not self._sessions:
                break
            await asyncio.sleep(0.01)
        for session in list(self._sessions.values()):
            session.abort()
        await asyncio.sleep(0)
        await self._commit.close(timeout_s=self.settings.close_timeout_s)
        self._lock.release()
        self.logins.close()
        self.peer_log.close()
        log.info("stopped")

    # --- what the outside sees -----------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """HOST:PORT of the AMQP listener."""
        return f"{self.settings.listen.host}:{self.port}"

    @property
    def port(self) -> int:
        """The port of the AMQP listener."""
        assert self._listener is not None
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    @property
    def management_address(self) -> str | None:
        """HOST:PORT of the management API; None if there is none."""
        address = self.settings.management
        if address is None or self.management_port is None:
            return None
        return str(replace(address, port=self.management_port))

    @property
    def session_count(self) -> int:
        """Sockets open, logged in or not."""
        return len(self._sessions)

    @property
    def state(self) -> State:
        """State of the broker, to read and not to change."""
        return self.broker.state

    @property
    def is_short_of_memory(self) -> bool:
        """True while clients with incomplete messages take turns."""
        return self.content_memory.is_short

    @property
    def unready_because(self) -> str | None:
        """Reason for which a publish may not be confirmed soon; None if it will be."""
        if self.state.blocked_reason is not None:
            return f"the store cannot write: {self.state.blocked_reason}"
        silent_s = self._commit.writing_for_s
        if silent_s > self.settings.disk_silent_s:
            return f"the disk has not answered for {silent_s:.0f} s"
        return None

    async def define(self, definition: Definition) -> None:
        """Keep somebody else's definition (a user, a permission); durable when this returns.

        Raises `StoreError`.
        """
        self.broker.define(definition.kind, definition.key, definition.value)
        await self.committed()

    async def administer(self, user: str, vhost: str, method: Method) -> Method:
        """Carry out a declare, bind, delete or purge outside any connection; durable when this returns.

        Raises `core.errors.Refusal`, `StoreError`, and KeyError for an unknown vhost.
        """
        answer, output = self.broker.administer(user, vhost, method, time.time())
        self._carry_out(output)
        await self.committed()
        return answer

    async def act(
        self, user: str, vhost: str, queue: str, action: str, arguments: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Have a queue do what only its kind can; durable when this returns.

        Raises `core.errors.Refusal`, `StoreError`, and KeyError for an unknown vhost.
        """
        answer, output = self.broker.act(user, vhost, queue, action, arguments, time.time())
        self._carry_out(output)
        await self.committed()
        return answer

    async def committed(self) -> None:
        """Until everything that changed up to now is on disk. Raises `StoreError` when it never will be."""
        self.commit_soon()
        await self._commit.committed()

    # --- the sessions' side --------------------------------------------------------------------------------

    def admit(self, session: Session) -> bool:
        """Take a new socket in, if there is room."""
        if len(self._sessions) >= self._connections_max or self._stopping:
            return False
        self._sessions[session.number] = session
        return True

    def forget(self, session: Session) -> None:
        """The socket is closed."""
        self._sessions.pop(session.number, None)
        self.content_memory.forget(session, self.loop.time())
        self._back_pressure.forget(session)
        self._speaking.pop(session, None)

    def received(self, session: Session, events: list[Event], size: int) -> None:
        """Apply what one read of a session brought; `size` counts towards what waits for the disk."""
        self.apply(Received(session.number, events))
        self._back_pressure.read(session, size)

    def apply(self, command: Command) -> None:
        """Apply a command and put its effects in the sessions' outputs."""
        self._carry_out(self.broker.apply(command, time.time()))

    def flush_soon(self, session: Session) -> None:
        """Write a session's output at the end of this turn."""
        self._speaking[session] = None
        self.commit_soon()

    def commit_soon(self) -> None:
        """Write outputs and hand changes to the store at the end of this turn."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self._end_turn)

    # --- inside --------------------------------------------------------------------------------------------

    def _carry_out(self, output: Output) -> None:
        for number, effects in output:
            session = self._sessions.get(number)
            if session is not None:
                session.perform(effects)
        self.commit_soon()
        self._set_alarm()

    def _end_turn(self) -> None:
        self._flush_scheduled = False
        speaking, self._speaking = self._speaking, {}
        for session in speaking:
            session.flush()
        self._commit.commit()

    def _set_alarm(self) -> None:
        at = self.broker.next_alarm
        if at == self._alarm_at:
            return
        self._alarm_at = at
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
        if at is not None and not self._stopping:
            self._alarm = self.loop.call_later(max(at - time.time(), 0.0), self._tick)

    def _tick(self) -> None:
        self._alarm = self._alarm_at = None
        self.apply(Ticked())

    def _check_content_soon(self) -> None:
        self.loop.call_later(TICK_S, self._check_content)

    def _check_content(self) -> None:
        self.content_memory.tick(self.loop.time())
        if self.content_memory.is_short and not self._stopping:
            self._check_content_soon()

    def _trim_soon(self) -> None:
        if self._trim is None:
            self._trim = self.loop.call_later(TRIM_S, self._trim_heap)

    def _trim_heap(self) -> None:
        self._trim = None
        if _malloc_trim is not None:
            _malloc_trim(0)
        self.content_memory.returned()

    def _disk_failed(self, _error: StoreError) -> None:
        """Confirm nothing, keep nobody."""
        for session in list(self._sessions.values()):
            session.abort()

    async def _open(self, administrator: Administrator | None) -> None:
        opened = await open_broker(
            self.settings.data_dir, administrator, default_group=self.settings.default_message_group
        )
        self.broker, self.users = opened.broker, opened.users
        self.logins = Logins(self.users, peer_log=self.peer_log)
        self._commit = GroupCommit(
            self.broker,
            opened.store,
            pacing=self._back_pressure,
            apply=self.apply,
            on_failed=self._disk_failed,
            retry_s=self.settings.disk_retry_s,
        )
        self.commit_soon()

    def new_session(self) -> Session:
        """The protocol of one more connection."""
        session = Session(self, self._next_number)
        self._next_number += 1
        return session

    async def _abandon(self) -> None:
        if hasattr(self, "_commit"):
            self.logins.close()
            await self._commit.close(timeout_s=self.settings.close_timeout_s)
        self._lock.release()
