"""The broker's store on a simulated disk: batches that are durable when they are written, and what a crash leaves."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from lbg_broker.server.core.effects import (
    Definition,
    Page,
    PageRequest,
    SpoolRecord,
    StoreBatch,
    StoredState,
)

StoredRow = tuple[bytes, bytes, bytes]
"""Origin, header, body."""


class Disk:
    """`is_full`: only batches on the reserve can be written, while it lasts."""

    def __init__(self, *, reserve: int = 64) -> None:
        self.definitions: dict[tuple[str, str], str] = {}
        self.records: dict[int, SpoolRecord] = {}
        self.rows: dict[tuple[int, bool], dict[int, StoredRow]] = defaultdict(dict)
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
                self._delete(rows, first, last)
            if change.record is not None:
                self.records[change.spool] = change.record
        for spool, durable in batch.dropped:
            self.rows.pop((spool, durable), None)
            self.records.pop(spool, None)
        return [self._read(request) for request in batch.pages]

    @property
    def is_low(self) -> bool:
        return self.is_full and self._reserve_left < self.reserve // 2

    @staticmethod
    def _delete(rows: dict[int, StoredRow], first: int, last: int) -> None:
        if last - first < len(rows):
            for position in range(first, last + 1):
                rows.pop(position, None)
        else:
            for position in [one for one in rows if first <= one <= last]:
                del rows[position]

    def _read(self, request: PageRequest) -> Page:
        rows = self.rows[request.spool, request.durable]
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
        for spool, durable in list(self.rows):
            if not durable:
                del self.rows[spool, durable]
        definitions = [
            Definition(kind, key, value) for (kind, key), value in sorted(self.definitions.items())
        ]
        records = [
            replace(record, first=min(self.rows[spool, True], default=None))
            for spool, record in sorted(self.records.items())
        ]
        return StoredState(definitions, records)

    def durable_bodies(self) -> set[bytes]:
        return {row[2] for (_, durable), rows in self.rows.items() if durable for row in rows.values()}

    def copied(self) -> Disk:
        """A backup."""
        copied = Disk(reserve=self.reserve)
        copied.definitions, copied.records = dict(self.definitions), dict(self.records)
        copied.rows = defaultdict(dict, {key: dict(rows) for key, rows in copy.copy(self.rows).items()})
        return copied
