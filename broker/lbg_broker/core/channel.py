"""A channel: numbering of deliveries and publishes, and unsettled deliveries."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from lbg_broker.core.consumer import Consumer
from lbg_broker.core.message import Message
from lbg_broker.core.spool import Spool
from lbg_core.amqp import Event

if TYPE_CHECKING:
    from lbg_broker.core.connection import Connection
    from lbg_broker.core.queue import Queue
    from lbg_broker.core.vhost import Route


Unsettled = tuple[Spool, Message, Consumer | None]
"""A delivery that awaits its ack, and the line it returns to; without a consumer it was fetched by basic.get."""


class Channel:
    """One open channel of a connection.

    `stalled`: the answer to its last command waits for the disk; later commands wait in `backlog`, so that
    replies keep their order.
    """

    __slots__ = (
        "backlog",
        "closing",
        "confirmed",
        "confirms",
        "connection",
        "consumers",
        "emptied",
        "fenced",
        "instant",
        "last_queue",
        "next_tag",
        "number",
        "outstanding",
        "outstanding_bytes",
        "prefetch",
        "prefetch_bytes",
        "prefetch_bytes_total",
        "prefetch_total",
        "published",
        "recalled",
        "revoked",
        "routes",
        "routes_generation",
        "stalled",
        "unsettled",
        "user",
        "vhost",
        "waiting",
    )

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.user = connection.user
        self.vhost = connection.vhost
        self.number = number
        self.closing = False
        self.stalled = False
        self.backlog: deque[Event] = deque()
        self.consumers: dict[str, Consumer] = {}
        self.last_queue = ""  # the name an empty queue name stands for (AMQP 0-9-1, queue.bind)
        # deliveries
        self.next_tag = 1
        self.unsettled: dict[int, Unsettled] = {}
        self.recalled: dict[int, Consumer] = {}  # recalled with basic.revoke, and not answered yet
        self.revoked: dict[int, tuple[Consumer, int]] = {}
        """Reassigned, and not yet acknowledged: the former consumer, and how many bytes."""
        self.emptied = 1  # bodies of deliveries with tags below have left memory, as far as possible
        self.outstanding = 0  # of consumers; what basic.get fetched does not count against a limit
        self.outstanding_bytes = 0
        self.prefetch = 0  # basic.qos global=false: each consumer made from now on
        self.prefetch_bytes = 0
        self.prefetch_total = 0  # basic.qos global=true: all consumers of the channel together
        self.prefetch_bytes_total = 0
        # publishes
        self.confirms = False
        self.published = 0
        self.confirmed = 0
        self.waiting = 0  # the highest publish whose confirm waits for the disk
        self.instant: list[int] = []  # publishes to confirm at the end of this turn
        self.fenced: set[Queue] = set()  # queues that refused a publish (ordered refusal)
        self.routes: dict[tuple[str, str], Route] = {}
        self.routes_generation = -1

    @property
    def limits_all(self) -> bool:
        """True if its consumers share a limit, so that room for one is room for all."""
        return bool(self.prefetch_total or self.prefetch_bytes_total)

    @property
    def owner(self) -> Connection:
        """Owner of what is declared exclusive here."""
        return self.connection
