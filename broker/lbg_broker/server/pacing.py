"""How far clients may be ahead of the disk."""

from collections.abc import Iterable
from typing import Protocol

__all__ = ["Pacing", "Reader"]


class Reader(Protocol):
    """Somebody who can be told to stop reading."""

    def pause_reading(self, reason: str) -> None: ...

    def resume_reading(self, reason: str) -> None: ...


class Pacing:
    """Counts the bytes that were read and are not written yet. Whoever brings more than `limit_bytes` together
    is not read from until half of that is left."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._gathered_bytes = 0  # for the next batch
        self._handed_bytes = 0  # in the batch being written
        self._held: set[Reader] = set()

    @property
    def waiting_bytes(self) -> int:
        """Bytes read and not known to be on disk."""
        return self._gathered_bytes + self._handed_bytes

    def read(self, reader: Reader, size: int) -> None:
        """This much came from somebody."""
        self._gathered_bytes += size
        if self.waiting_bytes > self._limit_bytes:
            self.hold((reader,))

    def hold(self, readers: Iterable[Reader]) -> None:
        """Read nothing more from these for now."""
        for reader in readers:
            self._held.add(reader)
            reader.pause_reading("disk")

    def handed_over(self) -> None:
        """What was gathered is being written."""
        self._handed_bytes, self._gathered_bytes = self._gathered_bytes, 0

    def written(self) -> None:
        """What was handed over is on disk."""
        self._handed_bytes = 0
        self._release()

    def nothing_to_write(self) -> None:
        """All that was gathered went through without touching the disk."""
        self._gathered_bytes = 0
        self._release()

    def forget(self, reader: Reader) -> None:
        """Somebody is gone."""
        self._held.discard(reader)

    def _release(self) -> None:
        if self._held and self.waiting_bytes <= self._limit_bytes // 2:
            held, self._held = self._held, set()
            for reader in held:
                reader.resume_reading("disk")
