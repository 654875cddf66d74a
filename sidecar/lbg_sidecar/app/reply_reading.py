"""An HTTP/1.1 reply out of the bytes of one connection (RFC 9112). No I/O here.

It reads what a reply to a POST or GET may be: a length, chunks, or everything until the connection ends. Whatever
else comes is refused, and its connection is closed, so that no byte is ever taken for the next reply.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

HEAD_MAX_BYTES = 32 * 1024
LINE_MAX_BYTES = 4096
"""A chunk's size with its extensions, or a trailer."""

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [^\r\n]*)?")
_FIELD_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_NO_BODY = frozenset({204, 304})


class ReplyError(Exception):
    """What came is no reply; `str()` says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes  # as much of it as the limit lets through
    retry_after: str | None


class _State(enum.Enum):
    HEAD = enum.auto()
    LENGTH = enum.auto()
    CHUNK_SIZE = enum.auto()
    CHUNK = enum.auto()
    CHUNK_END = enum.auto()
    TRAILER = enum.auto()
    UNTIL_END = enum.auto()


class ReplyReader:
    """One reply: `receive` until it returns it. `reusable` then says whether the connection may have another."""

    def __init__(self, body_max_bytes: int) -> None:
        self.reusable = False
        self._body_max_bytes = body_max_bytes
        self._state = _State.HEAD
        self._buffer = b""
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._left = 0  # of the length, or of the chunk
        self._trailer_bytes = 0
        self._keeps = False
        self._status = 0
        self._retry_after: str | None = None

    def receive(self, data: bytes) -> Reply | None:
        """The reply, once it is whole or longer than the limit. Raises ReplyError."""
        self._buffer = self._buffer + data if self._buffer else data
        while True:
            state = self._state
            if state is _State.HEAD:
                if not self._read_head():
                    return None
                if self._state is _State.LENGTH and not self._left:
                    return self._whole()
            elif state is _State.UNTIL_END:
                self._take(len(self._buffer))
                return self._cut() if self._is_over else None
            elif state is _State.LENGTH or state is _State.CHUNK:
                if not self._buffer:
                    return None
                self._left -= self._take(self._left)
                if self._is_over:
                    return self._cut()
                if not self._left:
                    if state is _State.LENGTH:
                        return self._whole()
                    self._state = _State.CHUNK_END
            else:
                line = self._line()
                if line is None:
                    return None
                if self._read_line(line):
                    return self._whole()

    def ended(self) -> Reply:
        """The connection has ended: that may be how the reply ends. Raises ReplyError if not."""
        if self._state is _State.UNTIL_END:
            return self._cut()
        if self._state is _State.HEAD and not self._buffer and not self._status:
            raise ReplyError("the connection was closed before the reply")
        raise ReplyError("the connection was closed in the middle of the reply")

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_MAX_BYTES:
                raise ReplyError(f"the reply's head has more than {HEAD_MAX_BYTES} bytes")
            return False
        start, *lines = self._buffer[:end].split(b"\r\n")
        self._buffer = self._buffer[end + 4 :]
        found = _STATUS_LINE.fullmatch(start)
        if found is None:
            raise ReplyError(f"the reply does not begin like HTTP/1.1: {start[:80]!r}")
        self._status = int(found[2])
        if self._status < 200:
            if self._status == 101:
                raise ReplyError("the reply switches the protocol")
            return True  # RFC 9110, 15.2: an interim one; the reply is still to come
        fields = _fields(lines)
        retry_after = fields.get(b"retry-after")
        self._retry_after = retry_after.decode("latin-1") if retry_after is not None else None
        options = fields.get(b"connection", b"").lower()
        self._keeps = b"close" not in options and (found[1] == b"1" or b"keep-alive" in options)
        self._frame(fields)
        return True

    def _frame(self, fields: dict[bytes, bytes]) -> None:
        """RFC 9112, section 6.3: how long the body is."""
        coding, length = fields.get(b"transfer-encoding"), fields.get(b"content-length")
        if self._status in _NO_BODY:
            self._state, self._left = _State.LENGTH, 0
        elif coding is not None:
            if length is not None or coding.lower() != b"chunked":
                raise ReplyError(f"the reply's transfer encoding cannot be read: {coding[:80]!r}")
            self._state = _State.CHUNK_SIZE
        elif length is not None:
            if not length.isdigit() or len(length) > 18:
                raise ReplyError(f"the reply's Content-Length is no number: {length[:80]!r}")
            self._state, self._left = _State.LENGTH, int(length)
        else:
            self._state = _State.UNTIL_END

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > LINE_MAX_BYTES:
                raise ReplyError("the reply's chunks cannot be read")
            return None
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return line

    def _read_line(self, line: bytes) -> bool:
        """Between chunks; whether that was the end."""
        if self._state is _State.CHUNK_END:
            if line:
                raise ReplyError("a chunk of the reply is longer than it says")
            self._state = _State.CHUNK_SIZE
        elif self._state is _State.CHUNK_SIZE:
            size = line.partition(b";")[0].strip(b" \t")
            if not 0 < len(size) <= 15 or size.strip(b"0123456789abcdefABCDEF"):
                raise ReplyError(f"the size of a chunk is no number: {size[:80]!r}")
            self._left = int(size, 16)
            self._state = _State.CHUNK if self._left else _State.TRAILER
        elif not line:
            return True
        else:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > HEAD_MAX_BYTES:
                raise ReplyError(f"the reply's trailers have more than {HEAD_MAX_BYTES} bytes")
        return False

    @property
    def _is_over(self) -> bool:
        return self._body_bytes > self._body_max_bytes

    def _take(self, most: int) -> int:
        part, self._buffer = self._buffer[:most], self._buffer[most:]
        self._body.append(part)
        self._body_bytes += len(part)
        return len(part)

    def _whole(self) -> Reply:
        self.reusable = self._keeps and not self._buffer  # nobody was asked for more than this reply
        return self._cut()

    def _cut(self) -> Reply:
        body = b"".join(self._body)[: self._body_max_bytes]
        return Reply(self._status, body, self._retry_after)


def _fields(lines: list[bytes]) -> dict[bytes, bytes]:
    """By their names in lower case; a field that comes twice with different values is refused where that matters."""
    fields: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _FIELD_NAME(name):
            raise ReplyError(f"a line of the reply's head cannot be read: {line[:80]!r}")
        name, value = name.lower(), value.strip(b" \t")
        former = fields.get(name)
        if former is not None and former != value:
            if name in (b"content-length", b"transfer-encoding"):
                raise ReplyError(f"the reply has two different {name.decode()}s")
            value = former + b", " + value
        fields[name] = value
    return fields
