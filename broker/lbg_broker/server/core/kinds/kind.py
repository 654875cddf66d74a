"""What a kind of queue brings: its lines, and the policy that shares them out."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from lbg_broker.server.core.changes import SpoolRecord
from lbg_broker.server.core.dealing import Policy
from lbg_broker.server.core.spool import Spool

if TYPE_CHECKING:
    from lbg_broker.server.core.arguments import QueueArguments
    from lbg_broker.server.core.queue import Queue
    from lbg_broker.server.core.state import State

__all__ = ["Kind"]


class Kind(Protocol):
    """One kind. The order of the lines is the kind's own; the store keeps it."""

    def new_lines(self, state: "State", rules: "QueueArguments", *, durable: bool) -> list[Spool]:
        """The lines of a new queue, at least one, made with `state.new_line`."""

    def restored_lines(
        self,
        state: "State",
        rules: "QueueArguments",
        records: Sequence[SpoolRecord],
        kept: Mapping[str, Any],
    ) -> list[Spool]:
        """The lines of a durable queue after a restart, in the order in which they were; `kept` is what its policy
        kept. Raises KeyError, TypeError or ValueError for what makes no queue."""

    def policy(self, state: "State", queue: "Queue", kept: Mapping[str, Any]) -> Policy:
        """The queue's policy; `kept` is empty for a new queue. It may put a function of its own in `queue.append`."""
