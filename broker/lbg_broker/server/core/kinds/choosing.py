"""From a queue's arguments to its kind."""

from typing import Final

from lbg_broker.server.core.arguments import QueueArguments
from lbg_broker.server.core.kinds.grouped.kind import GroupedKind
from lbg_broker.server.core.kinds.grouped.rules import GroupedRules
from lbg_broker.server.core.kinds.kind import Kind
from lbg_broker.server.core.kinds.partitioned.kind import PartitionedKind
from lbg_broker.server.core.kinds.partitioned.rules import PartitionedRules
from lbg_broker.server.core.kinds.plain import PlainKind
from lbg_broker.server.core.kinds.sessions.kind import SessionsKind
from lbg_broker.server.core.kinds.sessions.rules import SessionsRules

__all__ = ["kind_of"]

PLAIN: Final = PlainKind()
KINDS: Final[dict[type, Kind]] = {
    GroupedRules: GroupedKind(),
    PartitionedRules: PartitionedKind(),
    SessionsRules: SessionsKind(),
}
"""By the class of their rules."""


def kind_of(rules: QueueArguments) -> Kind:
    """The kind that these arguments ask for."""
    return PLAIN if rules.kind is None else KINDS[type(rules.kind)]
