"""Fields of a message for an inbox: publisher, hash, and sequence number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sent:
    seq: int | None
    publisher: str | None = "p"
    hash: int | None = 3

    @property
    def id(self) -> str:
        return f"{self.publisher}-{self.hash}-{self.seq}"
