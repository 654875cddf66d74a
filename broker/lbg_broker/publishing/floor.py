"""How far the input is done, without a gap."""

from __future__ import annotations

from collections import deque

from .message import Stamped
from .stamping import StartingPoint


class Floor:
    """How much of the input is done: the position below which every message is confirmed, and what a restart
    needs.
    """

    def __init__(self, start: StartingPoint, hash_count: int) -> None:
        self.position = start.position
        self.digest = start.digest
        self.next_seq = list(start.next_seq) or [0] * hash_count
        self.open: deque[Stamped] = deque()

    def begin_epoch(self) -> None:
        """With nothing open: the sequences of every hash begin at 0."""
        self.next_seq = [0] * len(self.next_seq)

    def advance(self) -> None:
        waiting = self.open
        while waiting and waiting[0].confirmed:
            message = waiting.popleft()
            self.next_seq[message.hash] = message.seq + 1
            self.digest = message.digest
            self.position += 1
