"""What an inbox looks at in a message: who published it, into which hash, as which one."""

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
