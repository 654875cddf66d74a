"""Problems of a group as people read them."""

from __future__ import annotations

from lbg_core.admin.describe import Description
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, text_of

_OF_BACKLOG = frozenset({Kind.NO_MEMBERS, Kind.QUEUE_UNSERVED, Kind.PARTITION_UNSERVED, Kind.DEAD_LETTERS})


def problem_lines(described: Description) -> list[str]:
    return [text_of(problem) for problem in described.problems]


def beside_backlog(described: Description) -> tuple[Problem, ...]:
    """Without notes, and those of messages that wait: a test has no members, or processes them later."""
    return tuple(one for one in described.faults if one.kind not in _OF_BACKLOG)
