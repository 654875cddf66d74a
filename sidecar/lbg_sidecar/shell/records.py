"""What a member keeps in files while it lives, if told to: the journal, and what was processed."""

from __future__ import annotations

import asyncio
import logging

from lbg_broker.journal import JournalWriter, flush_regularly

from ..commits import CommitLog, PositionFile
from ..commits.directory import require_directory
from ..consuming.consumption import Consumption
from ..consuming.positions import Positions
from ..settings import MemberSettings
from .journalling import Journalling
from .wall_clock import WallClock

log = logging.getLogger("lbg.member")


class Records:
    """The journal is opened by making it, in the event loop. Raises JournalingError, and CommitsError for a directory
    that cannot be used."""

    def __init__(self, settings: MemberSettings) -> None:
        loop = asyncio.get_running_loop()
        self.clock = WallClock(loop.time())
        self.journal: Journalling | None = None
        self._commits: CommitLog | PositionFile | None = None
        self._settings = settings
        self._flusher: asyncio.Task[None] | None = None
        if settings.commits is not None:
            require_directory(settings.commits)
        if settings.journal is not None:
            writer = JournalWriter(settings.journal, f"delivered-{self._file_name}", on_problem=log.error)
            self.journal = Journalling(writer, self.clock, group=settings.group)
            self._flusher = loop.create_task(flush_regularly(writer))

    def remember(self, consumption: Consumption) -> None:
        """Tell what was processed in an earlier life, and keep what is processed in this one: of a session one number,
        else the positions of all streams. Raises CommitsError."""
        settings = self._settings
        if settings.commits is None:
            return
        path = settings.commits / f"{settings.group}-{self._file_name}"
        session = consumption.session
        if session is not None:
            file = self._commits = PositionFile(
                path.with_name(f"{path.name}.position"), group=settings.group, session=session.name
            )
            session.committed, session.epoch, session.is_over = file.committed, file.epoch, file.is_over
            session.keep = file.write
        else:
            log_ = self._commits = CommitLog(path.with_name(f"{path.name}.commits"))
            consumption.processed.merge(Positions(log_.streams()))
            consumption.processed.keep = log_.write

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
