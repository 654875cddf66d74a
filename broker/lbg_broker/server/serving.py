"""The broker process: sockets and store around the core.

Within one turn of the event loop every command is applied at once; at its end each connection's output is
written in one piece, and if the store is idle everything that changed goes to it as one batch.
"""

import asyncio
import logging
import secrets
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

from lbg_broker.amqp import Event
from lbg_broker.amqp.methods import Method
from lbg_broker.server.accounts import first_accounts, load_users
from lbg_broker.server.core.broker import Broker, Output
from lbg_broker.server.core.changes import Definition, StoreBatch
from lbg_broker.server.core.commands import CloseConnection, Command, Committed, Received, StoreBlocked
from lbg_broker.server.core.state import State
from lbg_broker.server.core.users import Users
from lbg_broker.server.errors import StartError
from lbg_broker.server.session import Session
from lbg_broker.server.settings import Address, ServerSettings, TlsSettings
from lbg_broker.server.store import Committer, DiskFullError, Store, StoreError
from lbg_broker.server.store.committing import Outcome
from lbg_broker.server.store.locking import DirectoryLock

__all__ = ["Server", "running"]

log = logging.getLogger("lbg.broker")

STORE_FILE = "broker.sqlite3"


@asynccontextmanager
async def running(settings: ServerSettings) -> AsyncIterator["Server"]:
    """A broker, with its management API if that is asked for, while the block lasts. Raises `StartError`."""
    server = Server(settings)
    await server.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        if settings.management is not None:
            server.management_port = await _manage(server, settings.management, stack)
        yield server


async def _manage(server: "Server", address: Address, stack: AsyncExitStack) -> int:
    """Serve the management API until the stack ends; its port. Raises `StartError`."""
    from lbg_broker.server.management import managing  # only who manages pays for importing an HTTP server

    tls = _tls_context(server.settings.tls) if server.settings.tls else None
    try:
        return await stack.enter_async_context(
            managing(server, host=address.host, port=address.port, tls=tls)
        )
    except OSError as error:
        raise StartError(f"cannot listen on {address}: {error}") from error


class Server:
    """One broker. `start`, then `wait` for its end, or `stop` it."""

    broker: Broker
    users: Users
    loop: asyncio.AbstractEventLoop
    management_port: int | None = None

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.started_at = time.time()
        self._sessions: dict[int, Session] = {}
        self._next_number = 1
        self._speaking: dict[Session, None] = {}
        self._flush_scheduled = False
        self._in_flight: StoreBatch | None = None
        self._gathered_bytes = 0  # publishes not yet handed to the store
        self._written_bytes = 0  # publishes the store is writing
        self._held: set[Session] = set()  # not read from until the store has caught up
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._stopping = False
        self._final = False  # only the last batch is still to be sealed
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Open the store and listen. Raises `StartError` with one clear line."""
        self.loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[StoreError] = self.loop.create_future()
        self._idle = asyncio.Event()
        self._idle.set()
        settings = self.settings
        try:
            self._lock = DirectoryLock(settings.data_dir)
        except StoreError as error:
            raise StartError(str(error)) from error
        try:
            await self._open()
            tls = _tls_context(settings.tls) if settings.tls else None
            self._listener = await self.loop.create_server(
                self._new_session,
                settings.listen.host,
                settings.listen.port,
                ssl=tls,
                ssl_handshake_timeout=settings.handshake_timeout_s if tls else None,
                backlog=1024,
            )
        except StoreError as error:
            self._abandon()
            raise StartError(str(error)) from error
        except (OSError, ssl.SSLError) as error:
            self._abandon()
            raise StartError(f"cannot listen on {settings.listen}: {error}") from error
        log.info("listening on %s, data in %s", self.address, settings.data_dir)

    async def wait(self) -> None:
        """Until the store fails for good. Raises its `StoreError`."""
        raise await asyncio.shield(self._failed)

    async def stop(self, reason: str = "broker forced connection closure with reason 'shutdown'") -> None:
        """Close every connection (320), put everything on disk, and let the directory go."""
        if self._stopping:
            return
        self._stopping = True
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
        self._final = True
        with suppress(TimeoutError):  # on a full disk nothing more can be done: what was confirmed is there
            await asyncio.wait_for(self._idle.wait(), self.settings.close_timeout_s)
            final = None if self._failed.done() else self.broker.seal(final=True)
            if final is not None:
                self._submit(final)
                await asyncio.wait_for(self._idle.wait(), self.settings.close_timeout_s)
        if not self._failed.done():
            self._failed.cancel()
        await self.loop.run_in_executor(None, self._committer.stop)
        self._lock.release()
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
        """HOST:PORT of the management API; None if `running` was not asked for one."""
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
        """What the broker knows now: to read, not to change."""
        return self.broker.state

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

    async def committed(self) -> None:
        """Until everything that changed up to now is on disk. Raises `StoreError` when it never will be."""
        if self._failed.done():
            raise self._failed.result()
        if self.broker.has_changes:
            number = self.broker.state.batch.number
        elif self._in_flight is not None:
            number = self._in_flight.number
        else:
            return
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiters.append((number, waiter))
        self.commit_soon()
        await waiter

    # --- the sessions' side --------------------------------------------------------------------------------

    def admit(self, session: Session) -> bool:
        """Take a new socket in, if there is room."""
        if len(self._sessions) >= self.settings.connections_max or self._stopping:
            return False
        self._sessions[session.number] = session
        return True

    def forget(self, session: Session) -> None:
        """The socket is closed."""
        self._sessions.pop(session.number, None)
        self._held.discard(session)
        self._speaking.pop(session, None)

    def received(self, session: Session, events: list[Event], size: int) -> None:
        """Apply what one read of a session brought; `size` counts towards what waits for the disk."""
        self._gathered_bytes += size
        self.apply(Received(session.number, events))
        if self._gathered_bytes + self._written_bytes > self.settings.unwritten_max_bytes:
            self._held.add(session)
            session.pause_reading("disk")

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

    def _end_turn(self) -> None:
        self._flush_scheduled = False
        speaking, self._speaking = self._speaking, {}
        for session in speaking:
            session.flush()
        if self._in_flight is None and not self._final and not self._failed.done():
            batch = self.broker.seal()
            if batch is not None:
                self._submit(batch)
            else:  # all that was read went through without touching the disk
                self._gathered_bytes = 0
                self._release_held()

    def _submit(self, batch: StoreBatch) -> None:
        self._written_bytes, self._gathered_bytes = self._gathered_bytes, 0
        self._in_flight = batch
        self._idle.clear()
        self._committer.submit(batch)

    def _on_done(self, batch: StoreBatch, outcome: Outcome) -> None:
        """On the store's thread."""
        self.loop.call_soon_threadsafe(self._done, batch, outcome)

    def _done(self, batch: StoreBatch, outcome: Outcome) -> None:
        if isinstance(outcome, DiskFullError):
            self._disk_full(batch, outcome)
            return
        self._in_flight = None
        self._written_bytes = 0
        if isinstance(outcome, StoreError):
            self._fail(outcome)
            return
        if self.broker.state.blocked_reason is not None:
            log.warning("the disk has room again")
            self.apply(StoreBlocked(None))
        self.apply(Committed(batch.number, outcome))
        self._release_held()
        self._idle.set()
        self._wake(batch.number, None)

    def _release_held(self) -> None:
        """Read again from those who were ahead of the disk."""
        if (
            self._held
            and self._gathered_bytes + self._written_bytes <= self.settings.unwritten_max_bytes // 2
        ):
            held, self._held = self._held, set()
            for session in held:
                session.resume_reading("disk")

    def _wake(self, number: int, error: StoreError | None) -> None:
        """Tell those who wait for a batch."""
        waiters, self._waiters = self._waiters, []
        for wanted, waiter in waiters:
            if waiter.done():
                continue
            if error is not None:
                waiter.set_exception(error)
            elif wanted <= number:
                waiter.set_result(None)
            else:
                self._waiters.append((wanted, waiter))

    def _disk_full(self, batch: StoreBatch, error: DiskFullError) -> None:
        """Nothing is confirmed and nothing more read until the batch fits; what was promised is kept."""
        if self.broker.state.blocked_reason is None:
            log.error("%s: publishers wait until there is room", error)
            self.apply(StoreBlocked("low on disk"))
        for session in self._sessions.values():
            self._held.add(session)
            session.pause_reading("disk")
        self.loop.call_later(self.settings.disk_retry_s, self._committer.submit, batch)

    def _fail(self, error: StoreError) -> None:
        """The store cannot be trusted any more: confirm nothing, keep nobody."""
        log.critical("the store failed, stopping: %s", error)
        if not self._failed.done():
            self._failed.set_result(error)
        for session in list(self._sessions.values()):
            session.abort()
        self._idle.set()
        self._wake(0, error)

    async def _open(self) -> None:
        path = self.settings.data_dir / STORE_FILE
        store = await self.loop.run_in_executor(None, Store, path)
        self._committer = Committer(store, self._on_done)
        stored = await self.loop.run_in_executor(None, store.load)
        users = load_users(stored.definitions)
        accounts = [] if users.all() else first_accounts()
        self.users = load_users(accounts) if accounts else users
        self.broker = Broker(self.users, new_token=_new_token, stored=stored)
        for account in accounts:
            self.broker.define(account.kind, account.key, account.value)
        self.commit_soon()

    def _new_session(self) -> Session:
        session = Session(self, self._next_number)
        self._next_number += 1
        return session

    def _abandon(self) -> None:
        if hasattr(self, "_committer"):
            self._committer.stop()
        self._lock.release()


def _new_token() -> str:
    return secrets.token_urlsafe(16)


def _tls_context(tls: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls.certificate_file, tls.key_file)
    if tls.client_ca_file is not None:
        context.load_verify_locations(tls.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
