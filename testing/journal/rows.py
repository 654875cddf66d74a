"""Journal records with defaults, so that a test says only what it is about."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lbg_core.group import DeliveredRecord, PublishedRecord, encode
from lbg_core.journal import JournalWriter

START_US = 1_700_000_000_000_000
"""2023-11-14T22:13:20Z."""


def published(seq: int, *, at_us: int = 0, **fields: Any) -> PublishedRecord:
    """Sent `at_us` after START_US and confirmed a millisecond later."""
    told = {
        "publisher": "p",
        "key": "k",
        "hash_": 0,
        "queue": 0,
        "seq": seq,
        "published_at_us": START_US + at_us,
        "confirmed_at_us": START_US + at_us + 1000,
        "resends": 0,
        "group": "g",
        "body_bytes": 100,
    }
    return PublishedRecord(**{**told, **fields})


def delivered(seq: int, *, at_us: int = 0, member: int = 0, **fields: Any) -> DeliveredRecord:
    """Delivered `at_us` after START_US, with the application from 100 to 200 µs later and settled at 300, acked."""
    at = START_US + at_us
    told = {
        "publisher": "p",
        "key": "k",
        "hash_": 0,
        "queue": 0,
        "seq": seq,
        "published_at_us": START_US,
        "member": member,
        "member_name": f"m{member}",
        "incarnation": f"i{member}",
        "delivery": at_us,
        "redelivered": False,
        "delivered_at_us": at,
        "started_at_us": at + 100,
        "finished_at_us": at + 200,
        "settled_at_us": at + 300,
        "attempts": 1,
        "verdict": "ack",
        "session": None,
        "sequence": None,
        "group": "g",
        "body_bytes": 100,
    }
    return DeliveredRecord(**{**told, **fields})


def write_journal(
    directory: Path, records: Iterable[PublishedRecord | DeliveredRecord], *, writer: str = "test"
) -> Path:
    """One closed file with `records`; returns `directory`."""
    with JournalWriter(directory, writer) as journal:
        for record in records:
            journal.append(record)
    return directory


def write_lines(file: Path, lines: Iterable[PublishedRecord | DeliveredRecord | str]) -> Path:
    """A file with records and any other lines, as they are."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(line if isinstance(line, str) else encode(line) for line in lines))
    return file
