"""The broker's store on a simulated disk: batches in a write-ahead log, which a loss of power cuts off or tears.

As in SQLite with `journal_mode=WAL` and `synchronous=FULL` (https://www.sqlite.org/walformat.html): a commit is durable
when its frames are synced. Recovery reads frames until the first that is not whole, as each checksum covers all before
it, and carries out what has its last frame. The checkpoint syncs the log first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from lbg_broker.core.effects import (
    Definition,
    Page,
    PageRequest,
    SpoolRecord,
    StoreBatch,
    StoredState,
)
from lbg_broker.core.message import Origin
from lbg_broker.store.schema import CHECKPOINT_PAGES

StoredRow = tuple[bytes, bytes, bytes]
"""Origin, header, body."""


PAGE_BYTES = 4096
SECTORS = 9
"""Of 512 bytes, in a frame: a page and its header."""

INDEX_PAGES = 2
"""Pages of a transaction beside those of its messages."""

SECTOR_KEPT = 0.95
"""Part of the sectors without a sync that are on the disk after a loss of power, in any order."""


@dataclass(slots=True)
class Tables:
    definitions: dict[tuple[str, str], str] = field(default_factory=dict)
    records: dict[int, SpoolRecord] = field(default_factory=dict)
    rows: dict[tuple[int, bool], dict[int, StoredRow]] = field(default_factory=lambda: defaultdict(dict))

    def copied(self) -> Tables:
        rows = defaultdict(dict, {key: dict(rows) for key, rows in self.rows.items()})
        return Tables(dict(self.definitions), dict(self.records), rows)

    def apply(self, batch: StoreBatch) -> None:
        for definition in batch.definitions:
            if definition.value is None:
                self.definitions.pop((definition.kind, definition.key), None)
            else:
                self.definitions[definition.kind, definition.key] = definition.value
        for change in batch.spools:
            rows = self.rows[change.spool, change.durable]
            for message in change.inserts:
                assert message.position not in rows
                rows[message.position] = (message.origin.wire, message.header, message.body)
            for first, last in change.deletes:
                _delete(rows, first, last)
            if change.record is not None:
                self.records[change.spool] = change.record
        for spool, durable in batch.dropped:
            self.rows.pop((spool, durable), None)
            self.records.pop(spool, None)


def _frames_of(batch: StoreBatch) -> int:
    size = 0
    for change in batch.spools:
        for message in change.inserts:
            size += len(message.header) + len(message.body)
    return INDEX_PAGES + 1 + size // PAGE_BYTES


def _delete(rows: dict[int, StoredRow], first: int, last: int) -> None:
    if last - first < len(rows):
        for position in range(first, last + 1):
            rows.pop(position, None)
    else:
        for position in [one for one in rows if first <= one <= last]:
            del rows[position]


class Disk:
    """`is_full`: only batches on the reserve can be written, while it lasts."""

    def __init__(self, *, reserve: int = 64, tables: Tables | None = None) -> None:
        self._tables = tables or Tables()
        self._checkpointed = self._tables.copied()
        self._log: list[StoreBatch] = []
        """Written since the checkpoint; the first `_synced` of them are durable."""
        self._synced = self._log_frames = 0
        self.is_full = False
        self.reserve = self._reserve_left = reserve
        """Batches that the reserve has room for."""

    def write(self, batch: StoreBatch) -> list[Page] | None:
        """Carries out a batch and its reads; None if there is no room, and nothing of it is written."""
        if self.is_full and batch.writes:
            if not batch.on_reserve or not self._reserve_left:
                return None
            self._reserve_left -= 1
        elif not self.is_full:
            self._reserve_left = self.reserve
        if batch.writes:
            self._tables.apply(batch)
            self._log.append(batch)
            self._log_frames += _frames_of(batch)
        return [self._read(request) for request in batch.pages]

    @property
    def is_low(self) -> bool:
        return self.is_full and self._reserve_left < self.reserve // 2

    def sync(self) -> None:
        """All that is written is durable."""
        self._synced = len(self._log)
        if self._log_frames >= CHECKPOINT_PAGES:
            self._checkpointed = self._tables.copied()
            self._log.clear()
            self._synced = self._log_frames = 0

    def lose_power(self, random: Random) -> int:
        """Returns the number of batches that are lost: of what was not synced, whole sectors are missing."""
        kept = self._synced
        for batch in self._log[self._synced :]:
            sectors = SECTORS * _frames_of(batch)
            if any(random.random() > SECTOR_KEPT for _ in range(sectors)):
                break
            kept += 1
        lost = len(self._log) - kept
        self._tables = self._checkpointed.copied()
        for batch in self._log[:kept]:
            self._tables.apply(batch)
        self._checkpointed, self._log = self._tables.copied(), []
        self._synced = self._log_frames = 0
        return lost

    def _read(self, request: PageRequest) -> Page:
        rows = self._tables.rows[request.spool, request.durable]
        positions: Sequence[int] = sorted(one for one in rows if request.first <= one < request.upto)
        if request.positions:
            positions = [one for one in positions if one in request.positions]
        taken, size = [], 0
        for position in positions[: request.messages_max]:
            origin, header, body = rows[position]
            taken.append((position, origin, header, b"" if request.headers_only else body))
            size += len(header) + len(body)
            if size >= request.bytes_max:
                break
        end = request.upto if len(taken) == len(positions) else taken[-1][0] + 1
        return Page(request, taken, end)

    def load(self) -> StoredState:
        """State that a broker finds at its start."""
        for spool, durable in list(self._tables.rows):
            if not durable:
                del self._tables.rows[spool, durable]
        definitions = [
            Definition(kind, key, value) for (kind, key), value in sorted(self._tables.definitions.items())
        ]
        records = [
            replace(record, first=min(self._tables.rows[spool, True], default=None))
            for spool, record in sorted(self._tables.records.items())
        ]
        return StoredState(definitions, records)

    def durable_bodies(self) -> set[bytes]:
        return {
            row[2] for (_, durable), rows in self._tables.rows.items() if durable for row in rows.values()
        }

    def bodies_of(self, exchange: str) -> list[bytes]:
        """Of messages that were published to it, in the order of each queue."""
        return [
            body
            for rows in self._tables.rows.values()
            for _, (wire, _, body) in sorted(rows.items())
            if Origin.from_wire(wire).exchange == exchange
        ]

    def copied(self) -> Disk:
        """A backup."""
        return Disk(reserve=self.reserve, tables=self._tables.copied())
