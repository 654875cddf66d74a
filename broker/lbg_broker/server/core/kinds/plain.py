"""The plain queue: one line, shared by its consumers or given to the first of them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lbg_broker.server.core.dealing import Competing, Policy, SingleActive
from lbg_broker.server.core.kinds.single_line import SingleLine

if TYPE_CHECKING:
    from lbg_broker.server.core.queue import Queue
    from lbg_broker.server.core.state import State

__all__ = ["PlainKind"]


class PlainKind(SingleLine):
    """RabbitMQ's classic and quorum queues, as far as a client can tell."""

    def policy(self, state: "State", queue: "Queue", kept: Mapping[str, Any]) -> Policy:
        return SingleActive(queue.spool) if queue.rules.single_active_consumer else Competing(queue.spool)
