"""The kind: one line in groups, and the policy that shares it out."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lbg_broker.server.core.changes import SpoolRecord
from lbg_broker.server.core.dealing import Policy
from lbg_broker.server.core.keying import text_reader
from lbg_broker.server.core.kinds.grouped.line import GroupedLine
from lbg_broker.server.core.kinds.grouped.policy import GroupedPolicy
from lbg_broker.server.core.kinds.grouped.rules import GroupedRules
from lbg_broker.server.core.spool import Spool

if TYPE_CHECKING:
    from lbg_broker.server.core.arguments import QueueArguments
    from lbg_broker.server.core.queue import Queue
    from lbg_broker.server.core.state import State

__all__ = ["Grouped"]


class Grouped:
    """Queues with `qpid.group_header_key` or `x-group-header`."""

    def new_lines(self, state: "State", rules: "QueueArguments", *, durable: bool) -> list[Spool]:
        return [state.new_line(GroupedLine, durable=durable)]

    def restored_lines(
        self,
        state: "State",
        rules: "QueueArguments",
        records: Sequence[SpoolRecord],
        kept: Mapping[str, Any],
    ) -> list[Spool]:
        (record,) = records
        return [GroupedLine.restored(record, touched=state.touched)]

    def policy(self, state: "State", queue: "Queue", kept: Mapping[str, Any]) -> Policy:
        line, rules = queue.spool, queue.rules.kind
        assert isinstance(line, GroupedLine)
        assert isinstance(rules, GroupedRules)
        line.classify(
            text_reader((rules.header,)), state.default_group.encode(), partial(state.make_due, queue)
        )
        queue.limited = queue.rules.limited  # it is never shut
        return GroupedPolicy(line)
