"""Dead letters and unrouted messages of a group: list, replay and discard.

`letter` is pure; `queue` reads `lbg.G.dead` or `lbg.G.unrouted`, and `replay` lists, replays or discards. What is not
replayed or discarded stays where it was, in its order.
"""

from __future__ import annotations

from lbg_core.admin.dead_letters.letter import DeadLetter, DeadLetterError, ReplayStopped, Selection
from lbg_core.admin.dead_letters.queue import DeadQueue, open_dead_queue
from lbg_core.admin.dead_letters.replay import (
    Listing,
    ReplayResult,
    count,
    discard,
    list_letters,
    replay,
    replay_unrouted,
)

__all__ = [
    "DeadLetter",
    "DeadLetterError",
    "DeadQueue",
    "Listing",
    "ReplayResult",
    "ReplayStopped",
    "Selection",
    "count",
    "discard",
    "list_letters",
    "open_dead_queue",
    "replay",
    "replay_unrouted",
]
