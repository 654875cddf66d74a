"""Exactly once by its published definition: `make exactly-once`, `python -m testing.exactly_once --help`.

Whatever consumers insert into a table that has no unique index, each of a million messages is in it once in the end
("Achieving Exactly-Once Message Delivery Guarantees with Sequence Numbers", The Problem). Publishers fill a group;
each of its members is a `lbg sidecar` and, as a process of its own, an application that inserts through the inbox.
Applications, sidecars, both together, publishers and the broker are killed (SIGKILL) at random points of the work and
started again, until the group is drained. `--sessions` plays it in mode Sessions instead, without an inbox: see
`sessions`.
"""

from .databases import DATABASES
from .pairs import Victim
from .run import Failed, Run, Sizes
from .sessions import SessionOutcome, SessionSizes, SessionsRun
from .verdict import Outcome

__all__ = [
    "DATABASES",
    "Failed",
    "Outcome",
    "Run",
    "SessionOutcome",
    "SessionSizes",
    "SessionsRun",
    "Sizes",
    "Victim",
]
