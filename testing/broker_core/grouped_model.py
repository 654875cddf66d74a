"""A queue of message groups as a model for histories: who was given what, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field

Who = tuple[int, int, str]
"""Connection, channel, and consumer tag; of basic.get, something never used twice."""


@dataclass(eq=False)
class Entry:
    body: bytes
    group: str
    confirmed: bool = False
    given_out: bool = False
    holder: Who | None = None


@dataclass
class Hold:
    who: Who
    given: int = 0


@dataclass
class Settled:
    """Messages that were acked, rejected or purged, with step and client."""

    entry: Entry
    step: int
    who: Who | None


@dataclass
class QueueModel:
    entries: list[Entry] = field(default_factory=list)
    holds: dict[str, Hold] = field(default_factory=dict)
    consumers: dict[Who, int] = field(default_factory=dict)
    """With their prefetch; -1: without acknowledgements."""
    settled: dict[bytes, Settled] = field(default_factory=dict)
    """Since the last crash."""

    def ready(self, group: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.holder is None and entry.group == group]

    def require_no_inversion(self, there: list[bytes]) -> None:
        """On the disk after a crash, what was settled comes back from some moment on, and not with gaps."""
        settled = self.settled.values()
        gone = [one.step for one in settled if one.entry.confirmed and one.entry.body not in there]
        back = [one.step for one in settled if one.entry.body in there]
        assert max(gone, default=-1) <= min(back, default=1 << 30)

    def require_no_more_than_the_prefetch(self, there: list[bytes]) -> None:
        """Of what a consumer held or settled, no more comes back than it may have at a time."""
        holders = {entry.body: entry.holder for entry in self.entries}
        repeated: dict[Who, int] = {}
        for body in there:
            who = holders[body] if body in holders else self.settled[body].who
            if who is not None:
                repeated[who] = repeated.get(who, 0) + 1
        for who, prefetch in self.consumers.items():
            if prefetch > 0:
                assert repeated.get(who, 0) <= prefetch


@dataclass
class ChannelModel:
    tags: dict[int, Entry] = field(default_factory=dict)
    published: int = 0
    open_tags: dict[int, bytes] = field(default_factory=dict)


@dataclass
class Handed:
    who: Who
    tag: int
    redelivered: bool
    body: bytes
