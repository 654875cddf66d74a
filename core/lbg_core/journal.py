"""Append-only record files: written by publishers and members, read when they are closed.

    JournalingError
    ├── DirectoryUnusable   the directory cannot be made, listed or written in
    ├── WriteFailed         records were lost and the settings require a stop: `lost_records`
    └── UnreadableRecord    a closed file holds a line that is no record: `file`, `line`

WriteFailed may pass (the disk gets room again); the others need a person.

A file being written is `.NAME.jsonl.open`; closed it is `NAME.jsonl`. Readers, Spark among them, pass over
names that begin with a dot, so a file is seen only when it is whole. NAME is
`WRITER-YYYYMMDDTHHMMSSffffffZ-NNNNNN`: the time (UTC) at which the file was opened, and its number in the
writer's life.

A writer holds a lock (`forks.lock`) on its open file for as long as it lives; the kernel drops it with the process.
So an open file without a lock is a leftover: it is cut after its last whole line and renamed, or removed if
it is empty.

`docs/journal.md` describes the records (`lbg_core.group.journal_record`) and the files. No asyncio but in
`flush_regularly`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from lbg_core.counted_nouns import counted
from lbg_core.forks import lock
from lbg_core.group import DeliveredRecord, JournalError, PublishedRecord, decode, encode
from lbg_core.private_files import is_same_file, make_private_directory, open_private, report_wide


class JournalingError(Exception):
    """Base of every error of this package; `str()` is one line: the error, its place and the action to take."""


class DirectoryUnusable(JournalingError):
    def __init__(self, directory: Path, cause: OSError) -> None:
        super().__init__(f"the journal directory {directory} cannot be used: {cause.strerror or cause}")


class WriteFailed(JournalingError):
    def __init__(self, file: Path, cause: OSError, lost_records: int) -> None:
        super().__init__(
            f"cannot write the journal {file}: {cause.strerror or cause}; "
            f"{counted(lost_records, 'record is', 'records are')} not in it"
        )
        self.lost_records = lost_records


class UnreadableRecord(JournalingError):
    def __init__(self, file: Path, line: int, reason: str) -> None:
        super().__init__(f"{file}, line {line}: {reason}")
        self.file = file
        self.line = line


SUFFIX = ".jsonl"
OPEN_SUFFIX = ".open"

_WRITER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
_CLOSED = re.compile(r"(?P<writer>.+)-(?P<opened>\d{8}T\d{12}Z)-(?P<number>\d{6,})\.jsonl")


def require_writer_name(writer: str) -> str:
    """`writer`, if it can begin a file's name; raises ValueError."""
    if _WRITER.fullmatch(writer) is None:
        raise ValueError(
            f"{writer!r} cannot name a journal: letters, digits, dots, dashes and underscores, at most 151, "
            "beginning with a letter or digit"
        )
    return writer


def open_name(writer: str, *, opened_at_us: int, number: int) -> str:
    opened = datetime.fromtimestamp(opened_at_us // 1_000_000, UTC).strftime("%Y%m%dT%H%M%S")
    return f".{writer}-{opened}{opened_at_us % 1_000_000:06d}Z-{number:06d}{SUFFIX}{OPEN_SUFFIX}"


def closed_path(open_path: Path) -> Path:
    return open_path.with_name(open_path.name[1 : -len(OPEN_SUFFIX)])


def is_open_name(name: str) -> bool:
    return name.startswith(".") and name.endswith(SUFFIX + OPEN_SUFFIX)


def file_order(path: Path) -> tuple[str, int, str]:
    """Sorts closed files by when they were opened; the number breaks ties and clocks that went back do
    not.
    """
    match = _CLOSED.fullmatch(path.name)
    if match is None:
        return ("", 0, path.name)
    return (match["opened"], int(match["number"]), path.name)


_BLOCK_BYTES = 64 * 1024


def recover(directory: Path) -> list[Path]:
    """Closes every leftover in `directory`, of any writer; returns the files that are now closed. Raises
    OSError.
    """
    recovered = []
    for name in sorted(os.listdir(directory)):
        if is_open_name(name):
            closed = _close_leftover(directory / name)
            if closed is not None:
                recovered.append(closed)
    return recovered


def _close_leftover(path: Path) -> Path | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):  # another user's is for writers of that user to close
        return None
    try:
        if not lock(descriptor) or not is_same_file(descriptor, path):
            return None
        whole_bytes = _whole_lines_bytes(descriptor)
        if whole_bytes == 0:
            os.unlink(path)
            return None
        os.ftruncate(descriptor, whole_bytes)
        closed = closed_path(path)
        os.rename(path, closed)
        return closed
    finally:
        os.close(descriptor)


def _whole_lines_bytes(descriptor: int) -> int:
    """The size up to and with the last newline."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        begin = max(0, end - _BLOCK_BYTES)
        at = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Settings of a journal: flushing, rotation, and behaviour on a full disk.

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

    `writer` begins the files' names (`published-flights`, `delivered-2`). `on_problem` is called once when
    writing begins to fail, with one line, and once when it works again. One thread or loop uses a writer.
    Writes go to the page cache and are not synced: they survive the death of the process, not that of the
    machine.

    Raises DirectoryUnusable, and WriteFailed if the settings require it.
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
            make_private_directory(self.directory)
            if not os.access(self.directory, os.W_OK | os.X_OK):  # the first record would be too late
                raise PermissionError(errno.EACCES, "it cannot be written to")
            self.recovered = recover(self.directory)
        except OSError as error:
            raise DirectoryUnusable(self.directory, error) from error
        report_wide(self.directory)

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
                    f"the journal {self._path} is being written again; "
                    f"{counted(self.lost_records, 'record is', 'records are')} lost"
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
            descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            # The recovery of another writer may have treated the still empty file as a leftover: then try another name.
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


async def flush_regularly(writer: JournalWriter, *, interval_s: float = 1.0) -> None:
    """Flush `writer` every `interval_s` until cancelled. Raises WriteFailed if the writer's settings require it.

    A flush writes at most a few hundred records to the page cache, some tens of microseconds, so it runs in
    the loop.
    """
    while True:
        await asyncio.sleep(interval_s)
        writer.flush()


def closed_files(directory: Path | str) -> list[Path]:
    """The closed files of `directory`, in the order in which they were opened. Raises DirectoryUnusable."""
    directory = Path(directory)
    try:
        names = [path for path in directory.iterdir() if path.name[0] not in "._" and path.suffix == SUFFIX]
    except OSError as error:
        raise DirectoryUnusable(directory, error) from error
    return sorted(names, key=file_order)


class JournalReader:
    """Iterates over the records of every closed file of `source` (a directory, or one file), file by file.

    Records of one writer come in the order they were written; those of several writers are not merged. Raises
    UnreadableRecord, and DirectoryUnusable.
    """

    def __init__(self, source: Path | str) -> None:
        self.source = Path(source)

    def __iter__(self) -> Iterator[PublishedRecord | DeliveredRecord]:
        files = closed_files(self.source) if self.source.is_dir() else [self.source]
        for file in files:
            yield from _records(file)


def _records(file: Path) -> Iterator[PublishedRecord | DeliveredRecord]:
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield decode(line)
                except JournalError as error:
                    raise UnreadableRecord(file, number, error.reason) from error
    except OSError as error:
        raise DirectoryUnusable(file, error) from error
