"""Problems of a group as people read them."""

from __future__ import annotations

from lbg_core.admin.describe import Description
from lbg_core.admin.problems import text_of


def problem_lines(described: Description) -> list[str]:
    return [text_of(problem) for problem in described.problems]
