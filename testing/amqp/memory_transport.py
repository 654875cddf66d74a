"""A transport that is no socket: what a protocol writes is kept, and nothing is read but what a test hands over."""

from __future__ import annotations

import asyncio
from typing import Any


class MemoryTransport(asyncio.Transport):
    """The end of one connection that the protocol under test sees."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self._loop = loop
        self._protocol = protocol
        self._is_closing = False
        self.written = bytearray()
        self.has_ended = False
        """True if the protocol has ended its side."""

    def write(self, data: Any) -> None:
        if not self._is_closing:  # asyncio's drop what comes after `close` too
            assert not self.has_ended
            self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_ended = True

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = self.has_ended = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def take(self) -> bytes:
        """Bytes written since the last call."""
        written = bytes(self.written)
        self.written.clear()
        return written
