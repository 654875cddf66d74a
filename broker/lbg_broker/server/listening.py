"""Whether a client is read from, and whether its silence proves that it is gone."""

import asyncio

__all__ = ["Listening"]


class Listening:
    """Reading from one socket stands still as long as there is a reason for it: "disk", "alarm", "output"."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reasons: set[str] = set()
        self._lenient_until = 0.0
        self._unsent_bytes = 0
        self._drops = False

    def begin(self, transport: asyncio.Transport) -> None:
        """The socket is there."""
        self._transport = transport

    def drop(self) -> None:
        """Read from now on whatever else there is a reason for: what comes is only dropped, up to the client's end."""
        for reason in list(self._reasons):
            self.resume(reason, lenient_until=0.0)
        self._drops = True

    def pause(self, reason: str) -> None:
        """Take nothing more from this client for now."""
        if self._drops:
            return
        transport = self._transport
        if not self._reasons and transport is not None and not transport.is_closing():
            transport.pause_reading()
        self._reasons.add(reason)

    def resume(self, reason: str, *, lenient_until: float) -> None:
        """The reason is gone; go on if it was the last. What the client sent meanwhile is still in the socket: it was
        not silent, we did not listen."""
        if reason not in self._reasons:
            return
        self._reasons.discard(reason)
        transport = self._transport
        if transport is not None and not self._reasons:
            self._lenient_until = lenient_until
            if not transport.is_closing():
                transport.resume_reading()

    def excuses_silence(self, now: float) -> bool:
        """Whether silence proves nothing, because it is us who do not listen, or the client who takes what we sent.
        To be asked once a beat."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        drains, self._unsent_bytes = unsent < self._unsent_bytes, unsent
        is_ours = not self._reasons.isdisjoint(("disk", "alarm"))
        return is_ours or now < self._lenient_until or ("output" in self._reasons and drains)
