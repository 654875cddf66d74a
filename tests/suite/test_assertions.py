"""Each test asserts something: itself, or by a function of its file or of `testing` that does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from testing import ROOT

TESTS = ROOT / "tests"
JUDGES = {"Assert", "fail", "raises", "warns", "until", "expect", "validate"}
"""The statement, and functions of pytest, `testing.waiting`, Playwright and `kubernetes_validate`."""


def calls_of(*sources: str) -> Iterator[tuple[str, set[str]]]:
    """Each function with the names that it calls, and `Assert` if it has this statement."""
    for function in (one for source in sources for one in ast.walk(ast.parse(source))):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = list(ast.walk(function))
            called = [one.func for one in inner if isinstance(one, ast.Call)]
            names = {getattr(one, "attr", getattr(one, "id", "")) for one in called}
            yield function.name, names | {type(one).__name__ for one in inner if isinstance(one, ast.Assert)}


def silent(test: str, judges: set[str]) -> list[str]:
    functions = list(calls_of(test))
    known = judges.union(name for name, called in functions if called & JUDGES)
    return [name for name, called in functions if name.startswith("test_") and not called & known]


@pytest.mark.long
def test_each_test_asserts_something() -> None:
    support = (file.read_text() for file in (ROOT / "testing").rglob("*.py"))
    judges = JUDGES.union(name for name, called in calls_of(*support) if called & JUDGES)
    assert [one for file in TESTS.rglob("test_*.py") for one in silent(file.read_text(), judges)] == []


def test_a_test_that_asserts_nothing_is_found() -> None:
    tests, helper = "def test_a():\n check()\ndef test_b():\n run()\n", "def check():\n assert 1\n"
    assert silent(tests, JUDGES) == ["test_a", "test_b"]
    assert silent(helper + tests, JUDGES) == silent(tests, {"check"}) == ["test_b"]
