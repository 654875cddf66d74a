"""Sources of an input: files, compressed files and standard input, line by line."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import Protocol, Self

from lbg_core.counted_nouns import counted
from lbg_core.publisher.errors import InputError

STANDARD_INPUT = "-"
BLOCK_BYTES = 64 * 1024

_GZIP = b"\x1f\x8b"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")


class _Stream(Protocol):
    def read(self, size: int = ..., /) -> bytes | None: ...
    def close(self) -> None: ...


class Source:
    """Blocks of an input's text, decompressed. `name` is in errors; `inner_name` gives its format.

    `read_bytes` of `total_bytes` (None for a pipe) is how far it is, for a progress bar; both count what is
    on the disk, or what comes out where that is not known. `may_wait`: a read may wait for a writer.
    `format_read` and `header_read` are the format and header in use, once reading has begun; the header is a CSV's.
    """

    def __init__(
        self,
        name: str,
        stream: _Stream,
        *,
        inner_name: str,
        total_bytes: int | None = None,
        position: Callable[[], int] | None = None,
        may_wait: bool = False,
        beneath: io.FileIO | None = None,
    ) -> None:
        self.name = name
        self.inner_name = inner_name
        self.total_bytes = total_bytes
        self.may_wait = may_wait
        self.format_read = ""
        self.header_read: Sequence[str] = ()
        self._stream = stream
        self._beneath = beneath
        self._position = position
        self._out_bytes = 0

    @property
    def read_bytes(self) -> int:
        return self._position() if self._position else self._out_bytes

    def read(self) -> bytes:
        """The next block, empty at the end. Raises InputError."""
        try:
            block = self._stream.read(BLOCK_BYTES) or b""
        except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
            raise InputError(f"{self.name} is damaged or cut short: {error}") from error
        except OSError as error:
            raise InputError(f"{self.name} cannot be read: {error.strerror or error}") from error
        self._out_bytes += len(block)
        return block

    def close(self) -> None:
        self._stream.close()
        if self._beneath is not None:
            self._beneath.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_source(path: str) -> Source:
    """The source at `path`; `-` is standard input. Compression is detected by content. Raises InputError."""
    try:
        if path == STANDARD_INPUT:
            return _plain("standard input", io.FileIO(0, closefd=False))
        file = io.FileIO(path)
    except OSError as error:
        raise InputError(f"{path} cannot be opened: {error.strerror or error}") from error
    try:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return _plain(path, file)
        magic = file.read(4) or b""
        file.seek(0)
        if magic.startswith(_GZIP):
            return Source(
                path,
                gzip.GzipFile(fileobj=file, mode="rb"),
                inner_name=path.removesuffix(".gz"),
                total_bytes=os.fstat(file.fileno()).st_size,
                position=file.tell,
                beneath=file,
            )
        if magic in _ZIP:
            return _zipped(path, file)
        return _plain(path, file)
    except BaseException:
        file.close()
        raise


def _plain(name: str, file: io.FileIO) -> Source:
    status = os.fstat(file.fileno())
    is_regular = stat.S_ISREG(status.st_mode)
    total_bytes = status.st_size if is_regular else None
    return Source(name, file, inner_name=name, total_bytes=total_bytes, may_wait=not is_regular)


def _zipped(path: str, file: io.FileIO) -> Source:
    try:
        archive = zipfile.ZipFile(io.BufferedReader(file))
        members = [
            member
            for member in archive.infolist()
            if not member.is_dir() and not member.filename.startswith("__MACOSX/")
        ]
        if len(members) != 1:
            names = ", ".join(PurePath(member.filename).name for member in members[:5])
            content = (
                f"{counted(len(members), 'file')} ({names}{', …' if len(members) > 5 else ''})"
                if members
                else "no file"
            )
            raise InputError(
                f"{path} holds {content}: a .zip is read if it holds exactly one; unpack it first"
            )
        (member,) = members
        stream = archive.open(member)
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise InputError(f"{path} is no .zip that can be read: {error}") from error
    except RuntimeError as error:
        raise InputError(f"{path} is encrypted: unpack it first, and pipe it in if you like") from error
    return Source(path, stream, inner_name=member.filename, total_bytes=member.file_size, beneath=file)


ROW_MAX_BYTES = 16 * 1024 * 1024
"""No broker takes a larger message by default, and a file that is no text has no newline."""


class LineTooLong(Exception):
    """A line of more than `ROW_MAX_BYTES`. `head`: its beginning."""

    def __init__(self, head: bytes) -> None:
        super().__init__(f"{counted(len(head), 'byte')} without a newline")
        self.head = head


class Lines:
    """The lines of a source, as bytes with their newline. `number` is that of the last line returned, from 1.

    `at_hand`: another whole line is there without reading. A byte order mark at the start is dropped. Raises
    LineTooLong for a line of more than `ROW_MAX_BYTES`, which would fill the memory, and goes on behind it.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.number = 0
        self._lines: list[bytes] = []
        self._rest = b""
        self._long_head = b""
        self._is_cut = False
        """The rest of a line that is too long was not read yet."""
        self._is_at_end = False

    @property
    def at_hand(self) -> bool:
        return bool(self._lines)

    def peek(self) -> bytes:
        """The first line at hand that is not blank, if there is one; nothing is taken."""
        while not self._lines and not self._long_head and not self._is_at_end:
            self._fill()
        return self._long_head or next((line for line in reversed(self._lines) if line.strip()), b"")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        for _ in self.rest_of_line():
            pass
        while not self._lines:
            if self._long_head:
                head, self._long_head, self._is_cut = self._long_head, b"", True
                self.number += 1
                raise LineTooLong(head)
            if self._is_at_end:
                raise StopIteration
            self._fill()
        self.number += 1
        return self._lines.pop()

    def rest_of_line(self) -> Iterator[bytes]:
        """The parts that follow the head of a line that is too long; none of another line."""
        while self._is_cut:
            block = self.source.read()
            part, newline, rest = block.partition(b"\n")
            if newline or not block:
                self._is_cut = False
                self._split(rest, is_last=not block)
            yield part + newline

    def _fill(self) -> None:
        blocks = [self._rest]
        size = len(self._rest)
        while True:
            block = self.source.read()
            blocks.append(block)
            size += len(block)
            if not block or b"\n" in block:
                break
            if size > ROW_MAX_BYTES:
                self._rest, self._long_head = b"", self._without_mark(b"".join(blocks))
                return
        self._split(self._without_mark(b"".join(blocks)), is_last=not block)

    def _without_mark(self, text: bytes) -> bytes:
        return text if self.number else text.removeprefix(b"\xef\xbb\xbf")

    def _split(self, text: bytes, *, is_last: bool) -> None:
        self._is_at_end = is_last
        self._rest = b""
        *whole, last = text.split(b"\n")
        lines = [line + b"\n" for line in whole]
        if is_last:
            lines += [last] if last else []
        else:
            self._rest = last
        lines.reverse()
        self._lines = lines
