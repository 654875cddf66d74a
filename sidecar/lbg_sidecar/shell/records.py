"""What a member keeps in files while it lives: the journal, and the log of what was processed. Both only if told to."""

from __future__ import annotations

import asyncio
import logging

from lbg_broker.journal import JournalWriter, flush_regularly

from ..commits import CommitLog
from ..consuming.positions import Positions, Processed
from ..settings import MemberSettings
from .journalling import Journalling, WallClock

log = logging.getLogger("lbg.member")


class Records:
    """Opened by making it, in the event loop. Raises CommitsError, JournalingError."""

    def __init__(self, settings: MemberSettings) -> None:
        loop = asyncio.get_running_loop()
        self.clock = WallClock(loop.time())
        self.journal: Journalling | None = None
        self._commits: CommitLog | None = None
        self._flusher: asyncio.Task[None] | None = None
        name = "".join(mark if mark.isalnum() or mark in "._-" else "-" for mark in settings.name)
        if settings.commits is not None:
            self._commits = CommitLog(settings.commits / f"{settings.group}-{name}.commits")
        if settings.journal is not None:
            writer = JournalWriter(settings.journal, f"delivered-{name}", on_problem=log.error)
            self.journal = Journalling(writer, self.clock)
            self._flusher = loop.create_task(flush_regularly(writer))

    def remember(self, processed: Processed) -> None:
        """Tell what was processed in an earlier life, and keep what is processed in this one."""
        if self._commits is not None:
            processed.merge(Positions(self._commits.streams()))
            processed.keep = self._commits.write

    async def close(self) -> None:
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
        if self.journal is not None:
            self.journal.writer.close()
        if self._commits is not None:
            self._commits.close()
