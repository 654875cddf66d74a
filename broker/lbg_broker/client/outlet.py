"""Output on its way to the socket: gathered over a loop turn, written in one piece, held back when full."""

import asyncio
from collections.abc import Callable

from lbg_broker.amqp import Connection

__all__ = ["Outlet"]

FLUSH_BYTES = 256 * 1024
"""Output goes to the transport at the end of the loop turn, or when so much has gathered."""

HIGH_WATER_BYTES = 1024 * 1024
"""`drained` waits above this. With asyncio's own 64 KiB a publisher of small messages waits for every write."""

LINGER_S = 2.0
"""How long a closing socket may take to write out its last bytes."""


class Outlet:
    """Takes a machine's output to a transport, and tells when publishers must wait."""

    def __init__(self, machine: Connection) -> None:
        self._loop = asyncio.get_running_loop()
        self._machine = machine
        self._transport: asyncio.Transport | None = None
        self._turn_end: asyncio.Handle | None = None
        self._before_writing: list[Callable[[], None]] = []
        self._lingering: asyncio.TimerHandle | None = None
        self._gathered_bytes = 0
        self._written_in_turn_bytes = 0
        self._is_full = False
        self._is_blocked = False
        self._free = asyncio.Event()
        self._free.set()

    def attach(self, transport: asyncio.Transport) -> None:
        """There is a transport from now on."""
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def detach(self) -> None:
        """The transport is gone."""
        self._transport = None
        for handle in (self._turn_end, self._lingering):
            if handle is not None:
                handle.cancel()

    @property
    def unwritten_bytes(self) -> int:
        """What has not reached the kernel, roughly."""
        buffered = self._transport.get_write_buffer_size() if self._transport else 0
        return self._gathered_bytes + buffered

    def wrote(self, size_bytes: int) -> None:
        """The machine has more output, of about this size: have it written at the end of this loop turn."""
        self._gathered_bytes += size_bytes
        if self._gathered_bytes >= FLUSH_BYTES:
            self.flush()
        elif self._turn_end is None:
            self._turn_end = self._loop.call_soon(self._end_turn)

    def before_writing(self, callback: Callable[[], None]) -> None:
        """Call once at the end of this loop turn, before its output is written."""
        self._before_writing.append(callback)
        if self._turn_end is None:
            self._turn_end = self._loop.call_soon(self._end_turn)

    def flush(self) -> None:
        """Write what has gathered, now."""
        output = self._machine.take_output()
        self._gathered_bytes = 0
        if output and self._transport is not None:
            self._written_in_turn_bytes += len(output)
            self._transport.write(output)

    async def drained(self) -> None:
        """Flush; return when neither the transport is full nor the broker blocks, or `release` was called."""
        self.flush()
        if self._written_in_turn_bytes > FLUSH_BYTES:
            # A publisher that never waits would starve the reading of its confirms.
            self._written_in_turn_bytes = 0
            await asyncio.sleep(0)
        if not self._free.is_set():
            await self._free.wait()

    def set_full(self, is_full: bool) -> None:
        """The transport's word."""
        self._is_full = is_full
        self._update()

    def set_blocked(self, is_blocked: bool) -> None:
        """The broker's word."""
        self._is_blocked = is_blocked
        self._update()

    def release(self) -> None:
        """Wake whoever waits: there is nothing to wait for any more."""
        self._is_full = self._is_blocked = False
        self._update()

    def close(self) -> None:
        """Write what is left and close the socket."""
        self.flush()
        if self._transport is not None:
            self._transport.close()
            # A peer that reads nothing would keep what is buffered, and so the socket, for ever.
            self._lingering = self._loop.call_later(LINGER_S, self._transport.abort)

    def abort(self) -> bool:
        """Close the socket without writing; False when there is none."""
        if self._transport is None:
            return False
        self._transport.abort()
        return True

    def _end_turn(self) -> None:
        callbacks, self._before_writing = self._before_writing, []
        for callback in callbacks:
            callback()
        self._turn_end = None
        self.flush()
        self._written_in_turn_bytes = 0

    def _update(self) -> None:
        if self._is_full or self._is_blocked:
            self._free.clear()
        else:
            self._free.set()
