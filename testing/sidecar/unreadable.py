"""Deliveries whose bodies are in a temporary file that cannot be read."""

from __future__ import annotations

from lbg_core.client import Delivery
from lbg_sidecar.io.body_memory import StoredDelivery


class _File:
    def __init__(self, body: bytes, times: float) -> None:
        self._body = body
        self._left = times

    def read(self, offset: int, size: int) -> bytes:
        self._left -= 1
        if self._left >= 0:
            raise OSError("no such block")
        return self._body


def unreadable(delivery: Delivery, *, times: float = float("inf")) -> StoredDelivery:
    """The same delivery; its body can be read after so many times."""
    file = _File(delivery.body, times)
    return StoredDelivery.of(delivery, file, 0)  # type: ignore[arg-type]  # in place of a segment
