"""The partitioned kind: as many lines as it has partitions."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lbg_broker.server.core.changes import SpoolRecord
from lbg_broker.server.core.kinds.partitioned.line import Partition
from lbg_broker.server.core.kinds.partitioned.policy import Partitioned
from lbg_broker.server.core.kinds.partitioned.rules import PartitionedRules
from lbg_broker.server.core.spool import Spool

if TYPE_CHECKING:
    from lbg_broker.server.core.arguments import QueueArguments
    from lbg_broker.server.core.queue import Queue
    from lbg_broker.server.core.state import State

__all__ = ["PartitionedKind"]


class PartitionedKind:
    """Line n is partition n."""

    def new_lines(self, state: "State", rules: "QueueArguments", *, durable: bool) -> list[Spool]:
        return [state.new_line(Partition, durable=durable) for _ in range(_asked(rules).count)]

    def restored_lines(
        self,
        state: "State",
        rules: "QueueArguments",
        records: Sequence[SpoolRecord],
        kept: Mapping[str, Any],
    ) -> list[Spool]:
        return [Partition.restored(record, touched=state.touched) for record in records]

    def policy(self, state: "State", queue: "Queue", kept: Mapping[str, Any]) -> Partitioned:
        return Partitioned(state, queue, _asked(queue.rules), kept)


def _asked(rules: "QueueArguments") -> PartitionedRules:
    assert isinstance(rules.kind, PartitionedRules)
    return rules.kind
