"""What a publisher has done, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Messages, each counted once under a name however often it was sent; `refused` counts refusals.

    `skipped`: confirmed by an earlier run, as its state file says; stamped and not sent.
    `resends`: sends beyond a message's first.
    `maybe_twice`: sent again because their fate was unknown; the group may see them twice and drops the
    second.
    `accepted_after_gap`: accepted behind a refused message of the same hash, by a broker without ordered
    refusal.
    `inverted`: those of them that are of the refused message's own key: these do arrive before it.
    """

    published: int = 0
    without_key: int = 0
    confirmed: int = 0
    skipped: int = 0
    refused: int = 0
    resends: int = 0
    maybe_twice: int = 0
    accepted_after_gap: int = 0
    inverted: int = 0
    connections: int = 0
