"""A record in the journal for each message that the broker has confirmed."""

from __future__ import annotations

import time
from collections.abc import Iterable

from lbg_broker.group import PublishedRecord
from lbg_broker.journal import JournalWriter

from .message import Stamped


class ConfirmJournal:
    def __init__(self, journal: JournalWriter) -> None:
        self.journal = journal

    def record(self, messages: Iterable[Stamped], *, publisher: str, group: str) -> None:
        """They were confirmed now. Raises WriteFailed, if the journal's settings say so."""
        now_us = time.time_ns() // 1000
        append = self.journal.append
        for message in messages:
            append(
                PublishedRecord(
                    publisher,
                    message.key,
                    message.hash,
                    message.queue,
                    message.seq,
                    message.sent_at_us,
                    now_us,
                    message.sends - 1,
                    group,
                    message.body_bytes,
                )
            )
