"""Queues as a model for histories: what was accepted in which order, who holds what, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

QUEUES: dict[str, dict[str, Any]] = {
    "single": {"arguments": {"x-single-active-consumer": True}},
    "shared": {},
    "fleeting": {"durable": False, "arguments": {"x-single-active-consumer": True}},
    "refusing": {
        "arguments": {
            "x-single-active-consumer": True,
            "x-max-length": 5,
            "x-max-length-bytes": 60,
            "x-overflow": "reject-publish",
        }
    },
    "dying": {"arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "shared"}},
    "forgetful": {"arguments": {"x-max-length": 5}},
}


@dataclass
class Entry:
    """A message in a queue, as the model sees it."""

    body: bytes
    confirmed: bool = False
    given_out: bool = False
    holder: tuple[int, int, int] | None = None  # connection, channel, tag


@dataclass
class QueueModel:
    entries: list[Entry] = field(default_factory=list)
    settled: dict[bytes, bool] = field(default_factory=dict)
    """Messages acked, rejected or purged since the last crash, on disk or not; and whether
    a consumer had seen them."""
    consumers: list[tuple[int, int, str]] = field(default_factory=list)

    def ready(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.holder is None]

    def give_out(self, name: str, deliveries: Sequence[Handed], *, after_crash: bool) -> None:
        """Messages that left a queue in one step are its front; each receiver's part is in order."""
        ready = self.ready()
        place = {entry.body: index for index, entry in enumerate(ready)}
        for delivery in deliveries:
            assert delivery.body in place, (
                f"{name} delivered {delivery.body!r}, which is not there to deliver"
            )
        places = sorted(place[delivery.body] for delivery in deliveries)
        if name == "forgetful":  # what it dropped at its head stands before what it delivered
            for index in set(range(places[-1] + 1)) - set(places):
                self.entries.remove(ready[index])
                # Until the disk knows it, a crash brings it back.
                self.settled[ready[index].body] = ready[index].given_out
        else:
            assert places == list(range(len(places))), f"{name} delivered {places} of its line"
        last: dict[tuple[int, int], int] = {}
        for delivery in deliveries:
            assert last.get(delivery.receiver, -1) < place[delivery.body]
            last[delivery.receiver] = place[delivery.body]
        for delivery in deliveries:
            entry = ready[place[delivery.body]]
            if entry.given_out:
                assert delivery.redelivered
            elif not after_crash:
                assert not delivery.redelivered
            entry.given_out = True
            entry.holder = (*delivery.receiver, delivery.tag)


@dataclass
class ChannelModel:
    tags: dict[int, tuple[str, Entry]] = field(default_factory=dict)
    published: int = 0
    open_tags: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    fences: list[tuple[int, int]] = field(default_factory=list)
    """Publishes from a refused one on, up to the last before confirm.select."""
    refused_from: int | None = None


@dataclass
class Handed:
    """A message a client got in this step."""

    receiver: tuple[int, int]  # connection, channel
    tag: int
    redelivered: bool
    body: bytes
