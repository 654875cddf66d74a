"""A member of a group: joins it, calls the application, leaves it."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any, Self, cast

from lbg_broker.client import ClientConnection, ClientError, ConnectError, ConnectionLost, reconnecting
from lbg_broker.group import GroupSpec, Names
from lbg_broker.journal import JournalWriter, flush_regularly
from lbg_broker.provisioning import RecordUnavailable, read_group

from .app import CONCURRENCY, AppChannel, AsyncHandler, SyncHandler, concurrency_of, handler_channel
from .commits import CommitLog
from .consuming.positions import Positions
from .contact import Contact
from .effects import Effect
from .errors import IndexTaken
from .machine import MemberMachine
from .membership.claiming import Claiming
from .membership.messages import Identity
from .membership.roster import Timings
from .settings import MemberSettings
from .shell.driving import Driver
from .shell.journalling import Journalling, WallClock
from .shell.link import Link
from .shell.outgoing import Outgoing

log = logging.getLogger("lbg.member")

APP_STOP_GRACE_S = 5.0


class Member:
    """One member.

    ::

        async def handle(message):
            print(message.key, message.data)

        async with Member(MemberSettings(broker="amqp://…", group="orders"), handle) as member:
            await member.run()

    Entering connects, reads the group and joins it; `run` returns when the member has left, because of `stop`.
    Leaving the block leaves the group: every queue is handed over first. A lost connection is no error: calls are
    aborted, and the member comes back.

    `application` is a function (see `app.handler_channel`) or an `AppChannel`. `observer` is told every effect of
    the machine, for views and measurements. `contact` is told whether the member is in its group.

    Entering raises ClientError (`AuthenticationError`, …), ProvisioningError (`GroupNotFound`), MemberError and
    JournalingError.
    """

    def __init__(
        self,
        settings: MemberSettings,
        application: AppChannel | AsyncHandler | SyncHandler,
        *,
        observer: Callable[[Effect], None] | None = None,
        contact: Contact | None = None,
    ) -> None:
        self.settings = settings
        self.contact = contact or Contact()
        self.spec: GroupSpec | None = None
        if hasattr(application, "abort"):
            self.app = cast(AppChannel, application)
        else:
            self.app = handler_channel(application, concurrency=settings.concurrency or CONCURRENCY)
        self._observer = observer
        self._names = Names(settings.group)
        self._random = random.Random()
        self._driver: Driver | None = None
        self._journal: Journalling | None = None
        self._commits: CommitLog | None = None
        self._previous: int | None = None
        self._life: asyncio.Task[None] | None = None
        self._flusher: asyncio.Task[None] | None = None
        self._joined = asyncio.Event()
        self._lost = asyncio.Event()
        self._left = asyncio.Event()
        self._stood_down = False

    # Life

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if self.settings.commits is not None:
            name = f"{self.settings.group}-{_file_name(self.settings.name)}.commits"
            self._commits = CommitLog(self.settings.commits / name)
        self._clock = WallClock(loop.time())
        if self.settings.journal is not None:
            name = f"delivered-{_file_name(self.settings.name)}"
            writer = JournalWriter(self.settings.journal, name, on_problem=log.error)
            self._journal = Journalling(writer, self._clock)
            self._flusher = loop.create_task(flush_regularly(writer))
        self._life = loop.create_task(self._live(), name=f"lbg member {self.settings.name}")
        joined = loop.create_task(self._joined.wait())
        try:
            await asyncio.wait({joined, self._life}, return_when=asyncio.FIRST_COMPLETED)
            self._raise_what_ended_it()
        except BaseException:
            await self._end()
            raise
        finally:
            joined.cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop("the member is closed")
        try:
            await self._left.wait()
        finally:
            await self._end()

    async def run(self) -> None:
        """Return when the member has left. Raises what ended it otherwise."""
        assert self._life is not None, "use `async with Member(…) as member`"
        await asyncio.wait({self._life})
        self._raise_what_ended_it()

    def stop(self, reason: str = "stopped") -> None:
        """Leave: hand every queue over, then be over. Asked a second time, leave at once."""
        if self._driver is None:
            self._on_exit()
        elif not self._left.is_set():
            self._driver.stop(reason)

    @property
    def index(self) -> int | None:
        """The claimed client index; None while there is no connection."""
        me = self._driver.machine.roster.me if self._driver is not None else None
        return me.index if me is not None else None

    def state(self) -> dict[str, Any]:
        """What a view shows: plain data."""
        about = {
            "group": self.settings.group,
            "name": self.settings.name,
            "contact": self.contact.describe(),
        }
        if self._driver is None:
            return {**about, "connected": False}
        driver = self._driver
        app = {"ready": driver.app_ready.is_set(), "why": driver.app_unready_why, **self.app.describe()}
        return {**about, **driver.describe(), "app": app}

    async def count(self, queue: int) -> int | None:
        """The messages that wait in a queue at the broker; None if it cannot be asked now."""
        link = self._driver.link if self._driver is not None else None
        return await link.count(queue) if link is not None else None

    @property
    def heard_at(self) -> float | None:
        """When the broker was last heard of, on the loop's clock; None when that is not known."""
        link = self._driver.link if self._driver is not None else None
        return link.work.heard_at if link is not None else None

    # Connections

    async def _live(self) -> None:
        settings = self.settings
        connections = reconnecting(
            settings.addresses, name=f"lbg member {settings.name}", on_failure=self._on_failure
        )
        work: ClientConnection | None = None
        try:
            async for work in connections:
                try:
                    await self._live_on(work)
                except (ClientError, IndexTaken, RecordUnavailable) as error:
                    if self.spec is None and not error.retryable:
                        raise
                    log.warning("%s: %s; trying again", settings.name, self.contact.failed(error))
                if self._left.is_set():
                    return
        finally:
            self._left.set()
            if work is not None:
                await work.close()

    async def _live_on(self, work: ClientConnection) -> None:
        """One connection, from joining to losing it or leaving."""
        driver = self._driver or await self._learn(work)
        await self._app_ready(driver, work)
        link = await Link.open(
            work,
            self._names,
            claiming=self._claiming,
            look_at=range(driver.machine.rules.client_count) if self.settings.index is None else (),
            on_body=driver.on_body,
            on_returned=driver.on_returned,
        )
        try:
            me = Identity(link.index, self.settings.name, "")
            outgoing = Outgoing(
                self._names,
                me,
                link,
                on_confirmed=driver.on_confirmed,
                wall_us=self._clock.us,
            )
            self._lost.clear()
            self._stood_down = False
            self._previous = link.index
            driver.connect(link, outgoing)
            self.contact.joined()
            self._joined.set()
            await self._lost.wait()
            self.contact.parted(driver.lost_why)
            if driver.failure is not None:
                raise driver.failure
            if self._left.is_set() or self._stood_down:
                driver.part()
                await link.close()
        finally:
            driver.disconnect("the member ends")
            link.abort()

    async def _app_ready(self, driver: Driver, work: ClientConnection) -> None:
        """Return when the application can take messages. Raises ClientError if the connection goes before that."""
        if driver.app_ready.is_set():
            return
        log.info("%s: waiting for the application: %s", self.settings.name, driver.app_unready_why)
        ready: asyncio.Future[object] = asyncio.ensure_future(driver.app_ready.wait())
        either: tuple[asyncio.Future[Any], ...] = (ready, work.closed)
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if work.closed.done():
            raise work.closed.result() or ConnectionLost("closed")

    async def _learn(self, work: ClientConnection) -> Driver:
        """Read the group and get the application ready: once, before the first join."""
        settings = self.settings
        channel = await work.open_channel()
        spec = await read_group(channel, settings.group)
        await channel.close()
        machine = MemberMachine(
            settings.name,
            balancing=settings.balancing_rules(spec),
            rules=settings.processing_rules(concurrency=concurrency_of(self.app)),
            timings=Timings(),
            uniform=self._random.random,
            incarnation=lambda: secrets.token_hex(8),
        )
        if self._commits is not None:
            machine.consumption.processed.merge(Positions(self._commits.streams()))
            machine.consumption.processed.keep = self._commits.write
        driver = Driver(
            machine,
            self.app,
            group=settings.group,
            prefix=spec.hash_prefix,
            clock=self._clock,
            journal=self._journal,
            on_lost=self._lost.set,
            on_exit=self._on_exit,
            on_stood_down=self._on_stood_down,
            observer=self._observer,
        )
        await self.app.start(driver)
        driver.start()
        self.spec = spec
        self._driver = driver
        return driver

    def _claiming(self, looked: Collection[int], free: Collection[int]) -> Claiming:
        return Claiming(previous=self._previous, fixed=self.settings.index, looked=looked, free=free)

    def _on_failure(self, error: ConnectError, wait_s: float) -> None:
        line = self.contact.failed(error)
        log.warning("%s: %s; trying again within %.1f s", self.settings.name, line, wait_s)

    def _on_exit(self) -> None:
        self._left.set()
        self._lost.set()
        if self._life is not None and (self._driver is None or self._driver.link is None):
            self._life.cancel()  # it waits for a connection that nobody needs any more

    def _on_stood_down(self) -> None:
        self._stood_down = True
        self._lost.set()

    def _raise_what_ended_it(self) -> None:
        if self._life is not None and self._life.done() and not self._life.cancelled():
            self._life.result()

    async def _end(self) -> None:
        tasks = [task for task in (self._life, self._flusher) if task is not None]
        if self._left.is_set() and self._life is not None and self._driver is not None:
            await asyncio.wait(
                [self._life], timeout=APP_STOP_GRACE_S
            )  # it may still be closing its connections
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._driver is not None:
            self._driver.close()
        await self.app.stop(APP_STOP_GRACE_S)
        if self._journal is not None:
            self._journal.writer.close()
        if self._commits is not None:
            self._commits.close()


def _file_name(name: str) -> str:
    return "".join(mark if mark.isalnum() or mark in "._-" else "-" for mark in name)
