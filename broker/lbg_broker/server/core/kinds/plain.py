"""The plain queue: one line, shared by its consumers or given to the first of them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lbg_broker.server.core.changes import SpoolRecord
from lbg_broker.server.core.dealing import Competing, Policy, SingleActive
from lbg_broker.server.core.spool import Spool

if TYPE_CHECKING:
    from lbg_broker.server.core.arguments import QueueArguments
    from lbg_broker.server.core.queue import Queue
    from lbg_broker.server.core.state import State

__all__ = ["Plain"]


class Plain:
    """RabbitMQ's classic and quorum queues, as far as a client can tell."""

    def new_lines(self, state: "State", rules: "QueueArguments", *, durable: bool) -> list[Spool]:
        return [state.new_line(Spool, durable=durable)]

    def restored_lines(
        self,
        state: "State",
        rules: "QueueArguments",
        records: Sequence[SpoolRecord],
        kept: Mapping[str, Any],
    ) -> list[Spool]:
        (record,) = records
        return [Spool.restored(record, touched=state.touched)]

    def policy(self, state: "State", queue: "Queue", kept: Mapping[str, Any]) -> Policy:
        return SingleActive(queue.spool) if queue.rules.single_active_consumer else Competing(queue.spool)
