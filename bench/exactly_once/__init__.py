"""The document's own definition of exactly once: `make exactly-once`, `python -m bench.exactly_once --help`.

"If all consumers are simply inserting the messages into a database table without any unique index restrictions, the
end-result must be all 1 million messages from the broker inserted into the database table, without any duplicates"
("Achieving Exactly-Once Message Delivery Guarantees with Sequence Numbers"). Publishers fill a group; each of its
members is a `lbg sidecar` and, as a process of its own, an application that inserts through the inbox. Applications,
sidecars, both together, publishers and the broker are killed (SIGKILL) at random points of the work and started again,
until the group is drained. `--sessions` plays it in mode Sessions instead, without an inbox: see `sessions`.
"""

from .databases import DATABASES
from .judging import Outcome
from .pairs import Victim
from .running import Failed, Run, Sizes
from .sessions import SessionOutcome, SessionSizes, SessionsRun

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
