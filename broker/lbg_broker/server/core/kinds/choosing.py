"""From a queue's arguments to its kind."""

from typing import Final

from lbg_broker.server.core.arguments import QueueArguments
from lbg_broker.server.core.kinds.grouped.kind import Grouped
from lbg_broker.server.core.kinds.grouped.rules import GroupedRules
from lbg_broker.server.core.kinds.kind import Kind
from lbg_broker.server.core.kinds.partitioned.kind import PartitionedKind
from lbg_broker.server.core.kinds.partitioned.rules import PartitionedRules
from lbg_broker.server.core.kinds.plain import Plain
from lbg_broker.server.core.kinds.sessions.kind import Sessions
from lbg_broker.server.core.kinds.sessions.rules import SessionsRules

__all__ = ["kind_of"]

PLAIN: Final = Plain()
KINDS: Final[dict[type, Kind]] = {
    GroupedRules: Grouped(),
    PartitionedRules: PartitionedKind(),
    SessionsRules: Sessions(),
}
"""By the class of their rules."""


def kind_of(rules: QueueArguments) -> Kind:
    """The kind that these arguments ask for."""
    return PLAIN if rules.kind is None else KINDS[type(rules.kind)]
