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
    """What was acked, rejected or purged, in which step and by whom."""

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
