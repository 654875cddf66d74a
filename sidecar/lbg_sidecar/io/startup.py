"""Startup of a member: reads its group, opens its files, waits for its application."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbg_core.admin import ProvisioningError
from lbg_core.admin.record import Record, read_in_turn, spec_in
from lbg_core.client import ChannelClosed, ClientConnection, ConnectionLost
from lbg_core.group import (
    IDENTITY_BYTES,
    MESSAGE_GROUPS,
    PARTITIONED,
    SESSIONS,
    Engine,
    GroupSpec,
    Names,
    is_native,
)
from lbg_core.group.member_state import Positions
from lbg_core.journal import JournalWriter, flush_regularly
from lbg_sidecar.call_notes import CallNotes, default_directory
from lbg_sidecar.commit_log import CommitLog, PositionFile, require_directory
from lbg_sidecar.core.broker_assigned import BrokerAssignedMember
from lbg_sidecar.core.exclusive import ExclusiveMember
from lbg_sidecar.core.limits import CallLimit
from lbg_sidecar.core.member_core import MemberCore, Setup
from lbg_sidecar.core.session import Session, SessionPosition
from lbg_sidecar.core.timings import Timings
from lbg_sidecar.io.delivery_journal import DeliveryJournal, WallClock
from lbg_sidecar.io.driver import Driver
from lbg_sidecar.settings import (
    MemberSettings,
    balancing_rules,
    keys_at_once,
    processing_rules,
    validate_against,
)

log = logging.getLogger("lbg.member")


class DurableState:
    """The journal is opened by making it, in the event loop. Raises JournalingError, and CommitsError for a directory
    that cannot be used."""

    def __init__(self, settings: MemberSettings, wall_s: Callable[[], float]) -> None:
        loop = asyncio.get_running_loop()
        self.clock = WallClock(loop.time(), wall_s)
        self.journal: DeliveryJournal | None = None
        self._commits: CommitLog | PositionFile | None = None
        self.notes: CallNotes | None = None
        """Calls that run in this process; None where there are none, or no directory for the file."""
        self._settings = settings
        self._flusher: asyncio.Task[None] | None = None
        if settings.commits is not None:
            require_directory(Path(settings.commits))
        if settings.journal is not None:
            writer = JournalWriter(settings.journal, f"delivered-{self._file_name}", on_problem=log.error)
            self.journal = DeliveryJournal(writer, self.clock, group=settings.group)
            self._flusher = loop.create_task(flush_regularly(writer))

    def remember(self, machine: MemberCore) -> None:
        """Read the positions that an earlier process stored, and store those of this one: of a session one number, else
        the positions of all streams. Raises CommitsError."""
        settings = self._settings
        if settings.commits is None:
            return
        path = Path(settings.commits) / f"{settings.group}-{self._file_name}"
        if (part := machine.part(Session)) is not None:
            session = part.position
            file = self._commits = PositionFile(
                path.with_name(f"{path.name}.position"), group=settings.group, session=session.name
            )
            session.committed, session.epoch, session.is_over = file.committed, file.epoch, file.is_over
            session.write = file.write
        else:
            log_ = self._commits = CommitLog(path.with_name(f"{path.name}.commits"))
            processed = machine.dispatcher.processed
            processed.merge(Positions(log_.streams()))
            processed.write = log_.write

    def note_calls(self, machine: MemberCore, now: float) -> None:
        """Open the call notes, and report to the machine what ran when a former process died."""
        settings = self._settings
        try:
            try:
                notes = self._opened_notes(machine)
            except FileNotFoundError:
                # Another member has just removed the directory, as the last that used it.
                notes = self._opened_notes(machine)
        except OSError as error:
            log.warning(
                "%s: a message that ends this process will not be recognised: %s", settings.name, error
            )
            return
        self.notes = notes
        suspects, unknown = notes.former
        if suspects or unknown:
            log.warning(
                "%s: calls that ran when its process died: %d; what runs when it dies again is called alone%s",
                settings.name,
                len(suspects) + unknown,
                f", except {unknown} without a publisher's stamp" if unknown else "",
            )
        if suspects:
            machine.suspects.merge(suspects, now)

    def _opened_notes(self, machine: MemberCore) -> CallNotes:
        settings = self._settings
        return CallNotes(
            default_directory() if settings.commits is None else Path(settings.commits),
            settings.group,
            settings.addresses,
            name=settings.name,
            owner=settings.name if settings.has_own_name else "",
            slots=machine.dispatcher.rules.concurrency,
        )

    @property
    def _file_name(self) -> str:
        """The member's, without what a file system may not like."""
        return "".join(mark if mark.isalnum() or mark in "._-" else "-" for mark in self._settings.name)

    async def close(self) -> None:
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
        if self.journal is not None:
            self.journal.writer.close()
        if self._commits is not None:
            self._commits.close()
        if self.notes is not None:
            self.notes.close()
            if self._settings.commits is None:
                with suppress(OSError):  # it has notes of others
                    self.notes.path.parent.rmdir()


RECORD_S = 2.0
"""Time limit for reading the record again when a member comes back to its group."""

LIMITED_MODES = (PARTITIONED, MESSAGE_GROUPS)
"""Modes in which the broker recalls messages from a live member, and gets those that are not in its application."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group as its member finds it."""

    spec: GroupSpec
    engine: Engine
    has_parking: bool = False

    @property
    def is_native(self) -> bool:
        return is_native(self.spec, self.engine)

    def queue_name(self, number: int) -> str:
        """Name of a queue that carries its messages, also of one beyond the present number."""
        names = Names(self.spec.name)
        return names.parent if self.is_native else names.queue(number)


async def group_of(consume_connection: ClientConnection, name: str) -> Group:
    """Raises ClientError and the errors of `read_group`."""
    record = await _record_of(consume_connection, name)
    spec = spec_in(record.text, name)
    server = consume_connection.server_properties
    engine = Engine.parse(str(server["product"]), str(server["version"]))
    return Group(spec, engine, record.has_parking)


async def _record_of(consume_connection: ClientConnection, name: str) -> Record:
    channel = await consume_connection.open_channel()
    try:
        return await read_in_turn(channel, name)
    finally:
        channel.close_soon()  # it may still get the record, and must not retain it


async def group_now(consume_connection: ClientConnection, name: str) -> Group | None:
    """The group; None if it cannot be read in time. Raises ClientError when the connection is lost."""
    try:
        async with asyncio.timeout(RECORD_S):
            return await group_of(consume_connection, name)
    except (TimeoutError, ProvisioningError, ChannelClosed):
        return None


async def record_now(consume_connection: ClientConnection, name: str) -> tuple[Record, GroupSpec] | None:
    """The group's record; None if it cannot be read in time, or the group is only being made. Raises ClientError when
    the connection is lost."""
    try:
        async with asyncio.timeout(RECORD_S):
            record = await _record_of(consume_connection, name)
        return record, spec_in(record.text, name)
    except (TimeoutError, ProvisioningError, ChannelClosed):
        return None


def machine_of(
    settings: MemberSettings,
    group: Group,
    *,
    concurrency: int,
    chance: random.Random,
    limit: Callable[[int, float], CallLimit] | None = None,
    former: MemberCore | None = None,
) -> MemberCore:
    """`concurrency`: the default where the settings have none. `limit`: see `AppChannel.limit`. `former`: see `Setup`.
    Raises SettingsError when settings and group do not fit together."""
    spec = group.spec
    validate_against(settings, spec, is_native=group.is_native, has_parking=group.has_parking)
    rules = processing_rules(settings, spec, concurrency=concurrency, has_parking=group.has_parking)
    setup = Setup(
        settings.name,
        balancing=balancing_rules(
            settings, spec, is_native=group.is_native, on_rabbitmq=group.engine.is_rabbitmq
        ),
        rules=rules,
        timings=Timings(),
        uniform=chance.random,
        incarnation=lambda: chance.randbytes(IDENTITY_BYTES).hex(),
        former=former,
    )
    if not group.is_native:
        return ExclusiveMember(setup)
    is_limited = spec.mode in LIMITED_MODES
    return BrokerAssignedMember(
        setup,
        partitions=spec.queue_count if spec.mode == PARTITIONED else 1,
        moves=spec.mode == PARTITIONED,
        session=_session_of(settings, spec, former),
        keys_at_once=keys_at_once(rules) if spec.mode == MESSAGE_GROUPS else None,
        limit=limit(rules.concurrency, spec.max_handoff_s) if limit is not None and is_limited else None,
    )


def _session_of(
    settings: MemberSettings, spec: GroupSpec, former: MemberCore | None
) -> SessionPosition | None:
    if spec.mode != SESSIONS:
        return None
    session = former.part(Session) if former is not None else None
    return SessionPosition(settings.name) if session is None else session.position


async def app_ready(driver: Driver, consume_connection: ClientConnection) -> None:
    """Return when the application can take messages. Raises ClientError if the connection goes before that."""
    if driver.app_ready.is_set():
        return
    log.info("%s: waiting for the application: %s", driver.machine.name, driver.app_unready_why)
    ready: asyncio.Future[object] = asyncio.ensure_future(driver.app_ready.wait())
    either: tuple[asyncio.Future[Any], ...] = (ready, consume_connection.closed)
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ready.cancel()
    if consume_connection.closed.done():
        raise consume_connection.closed.result() or ConnectionLost("closed")
