"""Docstrings of modules and public classes name the thing, or say what it does: they open with no question word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("broker", "sidecar", "operator", "pipeline", "cli")
QUESTION = re.compile(r"(What|How|Who|Whom|Whose|Which|Where|Whether|That|When|Why|Whoever|Whatever)\b")


@cache
def openings() -> Sequence[tuple[str, str]]:
    """Module or class, and the first line of its docstring."""
    return list(read_openings())


def read_openings() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = ast.parse(path.read_text())
            where = str(path.relative_to(ROOT))
            yield where, (ast.get_docstring(module) or "").split("\n")[0]
            for node in ast.walk(module):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    yield f"{where}: {node.name}", (ast.get_docstring(node) or "").split("\n")[0]


def test_every_module_has_a_docstring_of_one_short_first_line() -> None:
    modules = {where: first for where, first in openings() if ":" not in where}
    assert len(modules) > 300
    assert [where for where, first in modules.items() if not first] == []


def test_no_module_and_no_public_class_opens_with_a_question_word() -> None:
    assert [f"{where}: {first}" for where, first in openings() if QUESTION.match(first)] == []
