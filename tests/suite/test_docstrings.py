"""Docstrings name the thing, or say what it does: none opens with a question word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

import pytest

from testing.trees import PRODUCT, TESTS, modules

QUESTION = re.compile(r"(What|How|Who|Whom|Whose|Which|Where|Whether|That|When|Why|Whoever|Whatever)\b")


def openings_of(module: ast.Module, where: str) -> Iterator[tuple[str, str]]:
    """Place and first line of each docstring; a module's also where it has none."""
    yield where, (ast.get_docstring(module) or "").split("\n")[0]
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{where}:{node.lineno} {node.name}", (ast.get_docstring(node) or "").split("\n")[0]
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield from _of_attributes(node.body, where)


def _of_attributes(body: Sequence[ast.stmt], where: str) -> Iterator[tuple[str, str]]:
    for attribute, text in pairwise(body):
        match attribute, text:
            case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(docstring))):
                yield f"{where}:{text.lineno}", docstring.split("\n")[0]


@cache
def openings(folders: tuple[str, ...]) -> Sequence[tuple[str, str]]:
    return [opening for path, tree in modules(*folders) for opening in openings_of(tree, str(path))]


def questions(of: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{where}: {first}" for where, first in of if QUESTION.match(first)]


@pytest.mark.rule
def test_every_module_has_a_docstring_of_one_short_first_line() -> None:
    modules = {where: first for where, first in openings(PRODUCT) if ":" not in where}
    assert len(modules) > 300
    assert [where for where, first in modules.items() if not first] == []


@pytest.mark.rule
@pytest.mark.parametrize("folders", [PRODUCT, TESTS], ids=["product", "tests"])
def test_no_docstring_opens_with_a_question_word(folders: tuple[str, ...]) -> None:
    assert questions(openings(folders)) == []


def test_docstrings_of_modules_classes_functions_and_attributes_are_read() -> None:
    module = ast.parse(
        '"""What a module is."""\n'
        'LIMIT = 1\n"""How many."""\n'
        'class Queue:\n    """Which queue."""\n    name: str\n    """Whose name."""\n'
        '    def _size(self) -> None:\n        """Where it ends."""\n        self.size = 0\n        """When read."""\n'
        'async def read() -> None:\n    """Whether to read."""\n'
        'def write() -> None:\n    """Writes."""\n'
    )
    assert {line.split(": ")[1] for line in questions(list(openings_of(module, "a.py")))} == {
        "What a module is.",
        "How many.",
        "Which queue.",
        "Whose name.",
        "Where it ends.",
        "When read.",
        "Whether to read.",
    }
