"""An HTTP/1.1 reply out of the bytes of one connection, parsed by httptools (the parser of Node.js). No I/O here.

What comes that is no reply, or would come in front of the next one, makes its connection one to be closed, so that no
byte is ever taken for another reply.
"""

from __future__ import annotations

from dataclasses import dataclass

import httptools

HEAD_MAX_BYTES = 32 * 1024
"""Of all that is not body. The parser itself has no limit."""

FRAMING_MAX_BYTES_PER_BYTE = 10
"""A chunk of one byte has five bytes around it."""


class ReplyError(Exception):
    """What came is no reply; `str()` says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes  # as much of it as the limit lets through
    retry_after: str | None
    is_cut: bool = False  # at the limit


class ReplyReader:
    """One reply: `receive` until it returns it. `reusable` then says whether the connection may have another."""

    def __init__(self, body_max_bytes: int) -> None:
        self.reusable = False
        self._body_max_bytes = body_max_bytes
        self._parser = httptools.HttpResponseParser(self)
        self._received_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._status = 0  # of the reply, once its head is read
        self._retry_after: str | None = None
        self._coding: bytes | None = None
        self._is_framed = False
        self._is_whole = False
        self._is_followed = False

    def receive(self, data: bytes) -> Reply | None:
        """The reply, once it is whole or longer than the limit. Raises ReplyError."""
        self._received_bytes += len(data)
        wrong: httptools.HttpParserError | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise ReplyError("the reply switches the protocol") from None
        except httptools.HttpParserError as error:
            wrong = error
        if self._status == 101:
            raise ReplyError("the reply switches the protocol")
        if 0 < self._status < 100:
            raise ReplyError(f"the reply's status is none of HTTP: {self._status:03}")
        if self._coding is not None and self._coding.lower() != b"chunked":
            raise ReplyError(f"the reply's transfer encoding cannot be read: {self._coding[:80]!r}")
        if self._body_bytes > self._body_max_bytes:
            self.reusable = False
            return self._cut()
        if self._is_whole:
            self.reusable = self.reusable and wrong is None and not self._is_followed
            return self._cut()
        if wrong is not None:
            raise ReplyError(f"the reply cannot be read as HTTP/1.1: {wrong}")
        if self._received_bytes - self._body_bytes > self._framing_max_bytes:
            raise ReplyError(f"the reply has more than {HEAD_MAX_BYTES} bytes that are not its body")
        return None

    def ended(self) -> Reply:
        """The connection has ended: that may be how the reply ends. Raises ReplyError if not."""
        if self._status and not self._is_framed:
            return self._cut()  # RFC 9112, section 6.3: neither a length nor chunks
        where = "in the middle of" if self._received_bytes else "before"
        raise ReplyError(f"the connection was closed {where} the reply")

    @property
    def _framing_max_bytes(self) -> int:
        return HEAD_MAX_BYTES + FRAMING_MAX_BYTES_PER_BYTE * self._body_bytes

    def _cut(self) -> Reply:
        body = b"".join(self._body)[: self._body_max_bytes]
        return Reply(self._status, body, self._retry_after, self._body_bytes > self._body_max_bytes)

    # What the parser says. An exception in here would come out of it as another one.

    def on_message_begin(self) -> None:
        self._is_followed = self._is_whole

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_whole:
            return
        match name.lower():
            case b"retry-after":
                self._retry_after = value.decode("latin-1")
            case b"transfer-encoding":
                self._coding = value if self._coding is None else self._coding + b", " + value
                self._is_framed = True
            case b"content-length":
                self._is_framed = True
            case _:
                pass

    def on_headers_complete(self) -> None:
        if self._is_whole:
            return
        status = self._parser.get_status_code()
        if (
            100 <= status < 200 and status != 101
        ):  # RFC 9110, 15.2: an interim one; the reply is still to come
            self._retry_after = self._coding = None
            self._is_framed = False
            return
        self._status = status

    def on_body(self, body: bytes) -> None:
        if not self._is_whole:
            self._body.append(body)
            self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        if self._status and not self._is_whole:
            self._is_whole = True
            self.reusable = self._parser.should_keep_alive()
