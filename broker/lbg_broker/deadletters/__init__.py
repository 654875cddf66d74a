"""The dead letters of a group: listed, published again, discarded.

`letter`, `selecting` and `restamping` are pure; `queue` reads `lbg.G.dead` and `working` does what is asked with what
was selected. What is not replayed or discarded stays where it was, in its order.
"""

from .errors import DeadLetterError, ReplayStopped
from .letter import DeadLetter
from .queue import DeadQueue, open_dead_queue
from .selecting import Selection
from .working import Done, Listing, count, discard, look, replay

__all__ = [
    "DeadLetter",
    "DeadLetterError",
    "DeadQueue",
    "Done",
    "Listing",
    "ReplayStopped",
    "Selection",
    "count",
    "discard",
    "look",
    "open_dead_queue",
    "replay",
]
