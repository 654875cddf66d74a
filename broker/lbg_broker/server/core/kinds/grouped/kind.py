"""The kind: one line in groups, and the policy that shares it out."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from lbg_broker.server.core.dealing import Policy
from lbg_broker.server.core.keying import text_reader
from lbg_broker.server.core.kinds.grouped.line import GroupedLine
from lbg_broker.server.core.kinds.grouped.policy import GroupedPolicy
from lbg_broker.server.core.kinds.grouped.rules import GroupedRules
from lbg_broker.server.core.kinds.single_line import SingleLine

if TYPE_CHECKING:
    from lbg_broker.server.core.queue import Queue
    from lbg_broker.server.core.state import State

__all__ = ["GroupedKind"]


class GroupedKind(SingleLine):
    """Queues with `qpid.group_header_key` or `x-group-header`."""

    line = GroupedLine

    def policy(self, state: "State", queue: "Queue", kept: Mapping[str, Any]) -> Policy:
        line, rules = queue.spool, queue.rules.kind
        assert isinstance(line, GroupedLine)
        assert isinstance(rules, GroupedRules)
        line.classify(
            text_reader((rules.header,)), state.default_group.encode(), partial(state.make_due, queue)
        )
        queue.limited = queue.rules.limited  # it is never shut
        return GroupedPolicy(state, line)
