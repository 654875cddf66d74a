"""`Member`: joins its group, calls the application, and leaves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

from lbg_core.admin import RecordUnavailable
from lbg_core.admin.errors import plain_reason
from lbg_core.client import ClientConnection, ClientError, ConnectError, reconnect_loop
from lbg_core.counted_nouns import counted
from lbg_core.group import STATIC, Names, is_recount
from lbg_core.group.member_state import Identity
from lbg_core.tracing import tracing
from lbg_sidecar.app.callable import AsyncHandler, SyncHandler, handler_channel
from lbg_sidecar.app.channel import CONCURRENCY, AppChannel
from lbg_sidecar.core.effects import Effect
from lbg_sidecar.core.index_claim import IndexClaim
from lbg_sidecar.core.member_core import MemberCore
from lbg_sidecar.core.presence import CONNECTIONS_S, LeavingTime
from lbg_sidecar.core.state_log import AttemptLog
from lbg_sidecar.errors import IndexTaken, SettingsError
from lbg_sidecar.io.body_memory import BodyMemory, body_limit_bytes, control_group_limit_bytes
from lbg_sidecar.io.connection import Host, MemberConnection
from lbg_sidecar.io.driver import Driver
from lbg_sidecar.io.key_move_channels import KeyMoveChannels
from lbg_sidecar.io.log_events import StateLogger
from lbg_sidecar.io.outbox import Outbox
from lbg_sidecar.io.parking_channels import ParkingChannels
from lbg_sidecar.io.startup import DurableState, Group, app_ready, group_now, group_of, machine_of, record_now
from lbg_sidecar.settings import MemberSettings, balancing_rules


class ConnectionStatus:
    """`advise` makes the text of an error, with what to do about it; `wall_s` gives seconds since 1970.

    An error stays until the member is in the group again: while it tries to get there, the last one counts.
    """

    def __init__(
        self,
        *,
        advise: Callable[[Exception], str] = plain_reason,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.is_joined = False
        self.error = ""
        self._advise = advise
        self._wall_s = wall_s
        self._since_s = wall_s()

    def joined(self) -> None:
        self._turn(True)
        self.error = ""

    def parted(self, why: str) -> None:
        """The member has left the group, for the reason `why`; empty when it left in order."""
        self._turn(False)
        self.error = why

    def failed(self, error: Exception) -> str:
        """Records a failed attempt to join the group; returns its log line."""
        self._turn(False)
        self.error = self._advise(error)
        return self.error

    @property
    def since(self) -> str:
        """UTC, as in RFC 3339."""
        return datetime.fromtimestamp(self._since_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    def describe(self) -> dict[str, object]:
        return {"joined": self.is_joined, "since": self.since, "last_error": self.error or None}

    def _turn(self, is_joined: bool) -> None:
        if is_joined is not self.is_joined:
            self.is_joined = is_joined
            self._since_s = self._wall_s()


log = logging.getLogger("lbg.member")

PROBED_MAX = 16
"""Indexes that are probed before one is claimed. A member of a larger group asks index 0."""


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

    `application` is a function (see `app.handler_channel`) or an `AppChannel`. `observer` is called with every
    effect of the core, for views and measurements. `contact` holds whether the member is in its group. `host` is the
    machine that it runs on, or a simulated one.

    Entering raises ClientError (`AuthenticationError`, …), ProvisioningError (`GroupNotFound`), MemberError,
    NewerMessage and JournalingError.
    """

    def __init__(
        self,
        settings: MemberSettings,
        application: AppChannel | AsyncHandler | SyncHandler,
        *,
        observer: Callable[[Effect], None] | None = None,
        contact: ConnectionStatus | None = None,
        host: Host | None = None,
    ) -> None:
        self.settings = settings
        self._host = host or Host()
        self.contact = contact or ConnectionStatus(wall_s=self._host.wall_s)
        if isinstance(application, AppChannel):
            self.app = application
        elif not callable(application):
            raise TypeError(f"{application!r} is neither a function nor an AppChannel")
        else:
            self.app = handler_channel(application, concurrency=settings.concurrency or CONCURRENCY)
        self._observer = observer
        self._names = Names(settings.group)
        self._driver: Driver | None = None
        self._group: Group | None = None
        """As it was read last."""
        self._records: DurableState | None = None
        self._previous: int | None = None
        self._life: asyncio.Task[None] | None = None
        self._reread_due = asyncio.Event()
        self._reread_why = ""
        self._joined = asyncio.Event()
        self._lost = asyncio.Event()
        self._left = asyncio.Event()
        self._stood_down = False
        self._leaving_time = LeavingTime(settings.shutdown_grace_s)
        self._attempts = AttemptLog()
        self._lost_at: float | None = None
        """Time at which the last connection was lost; None while there is one, and after leaving it in order."""

    # Life

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._records = DurableState(self.settings, self._host.wall_s)
        states = StateLogger[int](self.settings.name, {"member": self.settings.name})
        self._life = loop.create_task(
            self._live(self._records, states), name=f"lbg member {self.settings.name}"
        )
        joined = loop.create_task(self._joined.wait())
        try:
            await asyncio.wait({joined, self._life}, return_when=asyncio.FIRST_COMPLETED)
            self._raise_failure()
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
        """Return when the member has left. Raises what ended it otherwise.

        Cancelling it, as `asyncio.run` does on Ctrl-C, leaves the group by the way out of the `async with`.
        """
        assert self._life is not None, "use `async with Member(…) as member`"
        await asyncio.wait({self._life})
        self._raise_failure()

    def stop(self, reason: str = "stopped") -> None:
        """Hands every queue over and leaves the group. A second call leaves at once.

        What is at work gets `shutdown_grace_s`; the whole, with the application's end, `presence.MEMBER_MARGIN_S`
        more.
        """
        if self._life is not None:
            self._leaving_time.begin(self._life.get_loop().time())
        if self._driver is None:
            self._on_exit()
        elif not self._left.is_set():
            self._driver.stop(reason)

    def drop_connection(self) -> None:
        """Close the sockets to the broker as a lost network would: nothing more is written. The member joins again."""
        if self._driver is not None and self._driver.link is not None:
            self._driver.link.abort()

    @property
    def index(self) -> int | None:
        """The claimed client index; None while there is no connection."""
        me = self._driver.machine.roster.me if self._driver is not None else None
        return me.index if me is not None else None

    def state(self) -> dict[str, Any]:
        """State of the member as plain data, for a view."""
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

    def extend(self, message_id: str, seconds: float, progress: str | None = None) -> float | None:
        """As `Message.extend`, of the call of the message with this id; None if no such call runs here."""
        if self._driver is None:
            return None
        message = self._driver.running(message_id)
        return None if message is None else message.extend(seconds, progress)

    async def count(self, queue: int) -> int | None:
        """The messages that wait in a queue at the broker; None if the broker cannot be reached now."""
        link = self._driver.link if self._driver is not None else None
        return (await link.count(queue))[0] if link is not None else None

    @property
    def last_received_at(self) -> float | None:
        """Time of the last byte from the broker, on the loop's clock; None when unknown."""
        link = self._driver.link if self._driver is not None else None
        return link.consume_connection.last_received_at if link is not None else None

    # Connections

    async def _live(self, records: DurableState, states: StateLogger[int]) -> None:
        settings = self.settings
        connections = reconnect_loop(
            settings.addresses,
            on_failure=self._on_failure,
            open_one=partial(self._host.connect, name=f"lbg member {settings.name}"),
            uniform=self._host.chance.random,
        )
        consume_connection: ClientConnection | None = None
        try:
            async for consume_connection in connections:
                try:
                    await self._live_on(consume_connection, records, states)
                except (ClientError, IndexTaken, RecordUnavailable) as error:
                    if self._group is None and not error.retryable:
                        raise
                    self._log_failure(self.contact.failed(error), "trying again")
                if self._left.is_set():
                    return
        finally:
            self._left.set()
            if consume_connection is not None:
                await consume_connection.close(timeout_s=CONNECTIONS_S)

    async def _live_on(
        self, consume_connection: ClientConnection, records: DurableState, states: StateLogger[int]
    ) -> None:
        """One connection, from joining to losing it or leaving."""
        self._reread_due.clear()
        driver = await self._reread_group(consume_connection) or await self._read_group(
            consume_connection, records
        )
        group = self._group
        assert group is not None
        await app_ready(driver, consume_connection)
        link = await MemberConnection.open(
            consume_connection,
            self._names,
            queue_name=group.queue_name,
            claim_of=self._index_claim,
            candidates=range(min(group.spec.max_clients, PROBED_MAX)) if self.settings.index is None else (),
            on_mail=driver.on_mail,
            on_returned=driver.on_returned,
            on_will=driver.on_will,
            on_watched=partial(driver.feed, MemberCore.will_watched),
            consumer_timeout_s=self.settings.consumer_timeout_s,
            states=states,
            host=self._host,
        )
        states.retain(range(driver.machine.rules.queue_count))
        try:
            me = Identity(link.index, self.settings.name, "")
            outgoing = Outbox(
                self._names,
                me,
                link,
                on_confirmed=driver.on_confirmed,
                wall_us=records.clock.us,
            )
            self._lost.clear()
            self._stood_down = False
            self._previous = link.index
            # Now that requests arrive at its mailbox: one that comes while the record is read is newer.
            requests, record, recorded = -1, None, None
            while requests != driver.requests:
                requests = driver.requests
                recorded = await record_now(consume_connection, self.settings.group)
            if recorded is not None:
                record, spec = recorded
                driver.pause(record.is_paused)
                driver.assign(spec.assignment, spec.max_clients, spec.rebalance_threshold_percent)
            if record is not None and record.has_parking != group.has_parking:
                log.info("%s: the group has a parking queue now: joining again", self.settings.name)
                return
            parking = None
            if group.has_parking:
                parking = ParkingChannels(self._names, me, link, driver, wall_us=records.clock.us)
            driver.connect(
                link,
                outgoing,
                KeyMoveChannels(self._names, link, driver),
                parking,
                key_move="" if record is None else record.key_move,
            )
            if parking is not None:
                await parking.follow("" if record is None else record.parked_from)
            self._on_joined()
            await self._until_lost(driver, link, states)
            self.contact.parted(driver.lost_why)
            if driver.lost_why:
                self._lost_at = asyncio.get_running_loop().time()
            if driver.failure is not None:
                raise driver.failure
            if self._left.is_set() or self._stood_down:
                driver.part()
                await link.close()
        finally:
            driver.disconnect("the member ends")
            states.disconnected()
            link.abort()

    async def _until_lost(self, driver: Driver, link: MemberConnection, states: StateLogger[int]) -> None:
        """Return when the connection is lost. The number of queues may change meanwhile, any number of times."""
        loop = asyncio.get_running_loop()
        lost = loop.create_task(self._lost.wait())
        reshaping = loop.create_task(self._reshape(driver, link, states))
        try:
            await asyncio.wait({lost, reshaping}, return_when=asyncio.FIRST_COMPLETED)
            if reshaping.done():
                reshaping.result()
            await lost
        finally:
            for task in (lost, reshaping):
                task.cancel()
            await asyncio.gather(lost, reshaping, return_exceptions=True)

    async def _reshape(self, driver: Driver, link: MemberConnection, states: StateLogger[int]) -> None:
        """Takes the number of queues of the record, whenever it is due. Returns when it has to join again for that."""
        while True:
            await self._reread_due.wait()
            self._reread_due.clear()
            try:
                group = await group_now(link.consume_connection, self.settings.group)
            except ClientError as error:
                driver.disconnect(plain_reason(error))
                return
            if driver.link is not link:
                return
            if group is None or not self._can_take(group, driver.machine.rules.queue_count):
                driver.disconnect(self._reread_why)
                return
            self._group = group
            queue_count = group.spec.queue_count
            if queue_count != driver.machine.rules.queue_count:
                log.info("%s: the group has %s now", self.settings.name, counted(queue_count, "queue"))
                driver.reshape(queue_count)
                states.retain(range(queue_count))
            spec = group.spec
            driver.assign(spec.assignment, spec.max_clients, spec.rebalance_threshold_percent)

    def _can_take(self, group: Group, queue_count: int) -> bool:
        """True if the group differs from itself as it was read before in nothing but what `is_recount` permits, and the
        settings fit it. With assignment Static only if the machine has that number already."""
        former = self._group
        assert former is not None
        if group.has_parking != former.has_parking or not is_recount(former.spec, group.spec):
            return False
        if group.spec.assignment == STATIC and group.spec.queue_count != queue_count:
            return False
        try:
            balancing_rules(self.settings, group.spec, is_native=group.is_native)
        except SettingsError:
            return False
        return True

    async def _read_group(self, consume_connection: ClientConnection, records: DurableState) -> Driver:
        """Once, before the first join."""
        group = await group_of(consume_connection, self.settings.group)
        machine = self._machine_of(group)
        records.remember(machine)
        if self.app.runs_in_process:
            records.note_calls(machine, asyncio.get_running_loop().time())
        if records.journal is not None:
            records.journal.learn(group.spec.mode)
        driver = Driver(
            machine,
            self.app,
            group=self.settings.group,
            prefix=group.spec.hash_prefix,
            clock=records.clock,
            journal=records.journal,
            bodies=BodyMemory(body_limit_bytes(self.settings.body_memory_mb, control_group_limit_bytes())),
            on_lost=self._lost.set,
            on_exit=self._on_exit,
            on_stood_down=self._on_stood_down,
            on_reread=self._on_reread,
            observer=self._observer,
            traced=tracing(self.settings.name),
            notes=records.notes,
        )
        await self.app.start(driver)
        driver.start()
        self._group = group
        self._driver = driver
        return driver

    async def _reread_group(self, consume_connection: ClientConnection) -> Driver | None:
        """Reads the group's record again: its number of queues may have changed while the connection was lost."""
        driver, former = self._driver, self._group
        if driver is None or former is None:
            return None
        group = await group_now(consume_connection, self.settings.group)
        if group is not None and group != former:
            if group.spec.queue_count != former.spec.queue_count:
                log.info(
                    "%s: the group has %s now", self.settings.name, counted(group.spec.queue_count, "queue")
                )
            driver.drive(self._machine_of(group, former=driver.machine))
            self._group = group
        return driver

    def _machine_of(self, group: Group, *, former: MemberCore | None = None) -> MemberCore:
        return machine_of(
            self.settings,
            group,
            concurrency=self.app.concurrency,
            chance=self._host.chance,
            limit=self.app.limit,
            former=former,
        )

    def _index_claim(self, probed: Collection[int], free: Collection[int]) -> IndexClaim:
        return IndexClaim(previous=self._previous, fixed=self.settings.index, probed=probed, free=free)

    def _on_failure(self, error: ConnectError, wait_s: float) -> None:
        self._log_failure(self.contact.failed(error), f"trying again within {wait_s:.1f} s")

    def _log_failure(self, error: str, then: str) -> None:
        line = self._attempts.failed(error, asyncio.get_running_loop().time())
        if line is not None:
            log.warning("%s: %s; %s", self.settings.name, line, then)

    def _on_joined(self) -> None:
        self.contact.joined()
        self._joined.set()
        now = asyncio.get_running_loop().time()
        line, lost_at = self._attempts.succeeded(now), self._lost_at
        self._lost_at = None
        if lost_at is not None:
            log.info("%s: connected again after %.1f s", self.settings.name, now - lost_at)
        elif line is not None:
            log.info("%s: in the group %s", self.settings.name, line)

    def _on_exit(self) -> None:
        self._left.set()
        self._lost.set()
        if self._life is not None and (self._driver is None or self._driver.link is None):
            self._life.cancel()  # it waits for a connection that is not needed any more

    def _on_reread(self, why: str) -> None:
        self._reread_why = why
        self._reread_due.set()

    def _on_stood_down(self) -> None:
        self._stood_down = True
        self._lost.set()

    def _raise_failure(self) -> None:
        if self._life is not None and self._life.done() and not self._life.cancelled():
            self._life.result()

    async def _end(self) -> None:
        life = self._life
        if life is not None:
            if self._left.is_set() and self._driver is not None:
                # It may still be closing its connections.
                await asyncio.wait([life], timeout=CONNECTIONS_S)
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
        if self._driver is not None:
            self._driver.close()
        await self.app.stop(self._leaving_time.app_stop_s(asyncio.get_running_loop().time()))
        if self._records is not None:
            await self._records.close()
