"""Republishing in order, with a confirm for each message and many on the way.

Pure. A message that the broker refuses, or that reaches no queue because no validator listens yet, must not be
overtaken by a later one: what is on the way is awaited, then the rest goes out again from the first one refused,
one message at a time until one succeeds.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from operator import itemgetter

from .consuming.held import Held


class Republishing:
    """`tag` is the confirm's number for a publish. Times in seconds."""

    def __init__(self, *, window: int = 1024, pause_s: float = 0.5) -> None:
        self._window = window
        self._pause_s = pause_s
        self._waiting: deque[Held] = deque()
        self._on_the_way: dict[int, Held] = {}
        self._refused: dict[int, Held] = {}
        self._proven = False  # the last one succeeded, so many may be on the way
        self._not_before = 0.0

    def offer(self, held: Held) -> None:
        self._waiting.append(held)

    def next_to_send(self, now: float) -> Held | None:
        """The message to publish now, if any; then say so with `sent`. Skips what nobody can acknowledge any more."""
        if self._refused or now < self._not_before:
            return None
        if len(self._on_the_way) >= (self._window if self._proven else 1):
            return None
        while self._waiting:
            held = self._waiting.popleft()
            if not held.attachment.closed:
                return held
        return None

    def sent(self, tag: int, held: Held) -> None:
        self._on_the_way[tag] = held

    def resolved(self, tag: int, now: float, *, ok: bool) -> Held | None:
        """The fate of one publish. Returns the message if the broker has it, for good."""
        held = self._on_the_way.pop(tag, None)
        if held is None:
            return None
        if not ok:
            self._refused[tag] = held
            self._proven = False
        elif not self._refused:
            self._proven = True
        if self._refused and not self._on_the_way:
            self._waiting.extendleft(
                held for _, held in sorted(self._refused.items(), key=itemgetter(0), reverse=True)
            )
            self._refused.clear()
            self._not_before = now + self._pause_s
        return held if ok else None

    def up_to(self, tag: int) -> list[int]:
        """The publishes that a confirm with `multiple` stands for."""
        return list(takewhile(lambda sent: sent <= tag, self._on_the_way))

    def lost(self) -> None:
        """The channel is gone. Whatever was not confirmed is delivered again, to us or to another."""
        self._waiting.clear()
        self._on_the_way.clear()
        self._refused.clear()
        self._proven = False

    @property
    def next_due(self) -> float | None:
        return self._not_before if self._waiting and not self._refused else None

    @property
    def stuck(self) -> bool:
        """Nothing gets through at the moment."""
        return not self._proven and bool(self._waiting or self._refused)
