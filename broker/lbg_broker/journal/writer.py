"""Writing a journal: records are buffered, flushed in one write, and become visible when their file is
closed.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lbg_broker.group import DeliveredRecord, PublishedRecord, encode

from .errors import DirectoryUnusable, WriteFailed
from .naming import closed_path, open_name, require_writer_name
from .recovery import is_same_file, lock, recover


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """When records reach the file, when a file is closed, and what happens when the disk is full.

    `buffer_records`: records kept in memory before they are written; the owner calls `flush()` as well, about
        once a second, so a kill -9 loses at most what came since.
    `file_max_bytes`, `file_max_age_s`: the file is closed, and so becomes readable, when it reaches either.
    `stops_when_full`: False (the default): a write that fails loses its records, counts them, and publishing
        or consuming goes on, because a journal is evidence and not the stream itself. True: `WriteFailed` is
        raised.
    """

    buffer_records: int = 256
    file_max_bytes: int = 64 * 1024 * 1024
    file_max_age_s: float = 60.0
    stops_when_full: bool = False


class JournalWriter:
    """Appends records to `directory`, which is made if need be; leftovers of crashed writers there are closed
    first.

    `writer` begins the files' names (`published-flights`, `delivered-2`). `on_problem` is told once when
    writing begins to fail, with one line, and once when it works again. One thread or loop uses a writer.
    Writes go to the page cache and are not synced: they survive the death of the process, not that of the
    machine.

    Raises DirectoryUnusable, and WriteFailed if the settings say so.
    """

    def __init__(
        self,
        directory: Path | str,
        writer: str,
        *,
        settings: JournalSettings | None = None,
        on_problem: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.directory = Path(directory)
        self.settings = settings or JournalSettings()
        self.records = 0
        self.lost_records = 0
        self._writer = require_writer_name(writer)
        self._on_problem = on_problem
        self._buffer: list[str] = []
        self._limit = self.settings.buffer_records
        self._number = 0
        self._file: int | None = None
        self._path = Path()
        self._size_bytes = 0
        self._opened_at_s = 0.0
        self._is_failing = False
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not os.access(self.directory, os.W_OK | os.X_OK):  # the first record would be too late
                raise PermissionError(errno.EACCES, "it cannot be written to")
            self.recovered = recover(self.directory)
        except OSError as error:
            raise DirectoryUnusable(self.directory, error) from error

    def append(self, record: PublishedRecord | DeliveredRecord) -> None:
        buffer = self._buffer
        buffer.append(encode(record))
        if len(buffer) >= self._limit:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered, and close the file if it is old or large enough."""
        if self._buffer:
            lines, self._buffer = self._buffer, []
            try:
                self._write("".join(lines).encode("ascii"))
            except OSError as error:
                self._lose(len(lines), error)
                return
            self.records += len(lines)
            if self._is_failing:
                self._is_failing = False
                self._on_problem(
                    f"the journal {self._path} is being written again; {self.lost_records} records are lost"
                )
        if self._file is not None and (
            self._size_bytes >= self.settings.file_max_bytes
            or time.monotonic() - self._opened_at_s >= self.settings.file_max_age_s
        ):
            self.rotate()

    def rotate(self) -> None:
        """Close the current file, if there is one: from now on readers see it. The next record opens
        another.
        """
        if self._file is None:
            return
        try:
            os.rename(self._path, closed_path(self._path))
        except OSError as error:
            self._report(WriteFailed(self._path, error, 0))
        finally:
            os.close(self._file)
            self._file = None

    def close(self) -> None:
        self.flush()
        self.rotate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._open()
        assert self._file is not None
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            self._cut_back()
            raise
        self._size_bytes += len(data)

    def _cut_back(self) -> None:
        """Part of a failed write may be in the file: without this, the next record would continue half a line."""
        assert self._file is not None
        try:
            os.ftruncate(self._file, self._size_bytes)
            os.lseek(self._file, self._size_bytes, os.SEEK_SET)
        except OSError:
            os.close(self._file)  # a leftover now, which the next start cuts and closes
            self._file = None

    def _open(self) -> None:
        while True:
            self._number += 1
            name = open_name(self._writer, opened_at_us=time.time_ns() // 1000, number=self._number)
            path = self.directory / name
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            # Somebody's recovery may have taken the still empty file for a leftover: then try another name.
            if lock(descriptor) and is_same_file(descriptor, path):
                break
            os.close(descriptor)
        self._file, self._path = descriptor, path
        self._size_bytes = 0
        self._opened_at_s = time.monotonic()

    def _lose(self, count: int, error: OSError) -> None:
        self.lost_records += count
        self._report(WriteFailed(self._path if self._file else self.directory, error, count))

    def _report(self, failure: WriteFailed) -> None:
        if self.settings.stops_when_full:
            raise failure
        if not self._is_failing:
            self._is_failing = True
            self._on_problem(f"{failure} (going on without it; lost records are counted)")
