"""Protocol of a queue type, and the plain queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from lbg_broker.core.effects import SpoolRecord
from lbg_broker.core.entities import DispatchPolicy
from lbg_broker.core.policies import Competing, SingleActive
from lbg_broker.core.spool import Spool

if TYPE_CHECKING:
    from lbg_broker.core.arguments import QueueArguments
    from lbg_broker.core.entities import Queue
    from lbg_broker.core.state import State


class QueueType(Protocol):
    """One kind. The order of the lines is the kind's own; the store keeps it."""

    def new_lines(self, state: State, rules: QueueArguments, *, durable: bool) -> list[Spool]:
        """The lines of a new queue, at least one, made with `state.new_line`."""

    def restored_lines(
        self,
        state: State,
        rules: QueueArguments,
        records: Sequence[SpoolRecord],
        stored: Mapping[str, Any],
    ) -> list[Spool]:
        """The lines of a durable queue after a restart, in the order in which they were; `stored` is the stored state
        of its policy. Raises KeyError, TypeError or ValueError for what makes no queue."""

    def policy(self, state: State, queue: Queue, stored: Mapping[str, Any]) -> DispatchPolicy:
        """The queue's policy; `stored` is empty for a new queue. It may put a function of its own in `queue.append`."""


class SingleSpoolType:
    """The lines of such a kind; `line` is the class of the one there is."""

    line: ClassVar[type[Spool]] = Spool

    def new_lines(self, state: State, rules: QueueArguments, *, durable: bool) -> list[Spool]:
        return [state.new_line(self.line, durable=durable)]

    def restored_lines(
        self,
        state: State,
        rules: QueueArguments,
        records: Sequence[SpoolRecord],
        stored: Mapping[str, Any],
    ) -> list[Spool]:
        (record,) = records
        return [self.line.restored(record, touched=state.touched)]


class PlainQueueType(SingleSpoolType):
    """RabbitMQ's classic and quorum queues, as a client sees them."""

    def policy(self, state: State, queue: Queue, stored: Mapping[str, Any]) -> DispatchPolicy:
        return SingleActive(queue.spool) if queue.rules.single_active_consumer else Competing(queue.spool)
