"""Each test asserts something: itself, or by a function of its file or of `testing` that does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from testing.trees import modules

JUDGES = {"Assert", "fail", "raises", "warns", "until", "expect", "validate"}
"""The statement, and functions of pytest, `testing.waiting`, Playwright and `kubernetes_validate`."""


def calls_of(*trees: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Each function with the names that it calls, and `Assert` if it has this statement."""
    for function in (one for tree in trees for one in ast.walk(tree)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = list(ast.walk(function))
            called = [one.func for one in inner if isinstance(one, ast.Call)]
            names = {getattr(one, "attr", getattr(one, "id", "")) for one in called}
            yield function.name, names | {type(one).__name__ for one in inner if isinstance(one, ast.Assert)}


def silent(test: ast.Module, judges: set[str]) -> list[str]:
    functions = list(calls_of(test))
    known = judges.union(name for name, called in functions if called & JUDGES)
    return [name for name, called in functions if name.startswith("test_") and not called & known]


@pytest.mark.rule
def test_each_test_asserts_something() -> None:
    support = (tree for _, tree in modules("testing"))
    judges = JUDGES.union(name for name, called in calls_of(*support) if called & JUDGES)
    assert [
        one
        for path, tree in modules("tests")
        if path.name.startswith("test_")
        for one in silent(tree, judges)
    ] == []


def test_a_test_that_asserts_nothing_is_found() -> None:
    tests, helper = "def test_a():\n check()\ndef test_b():\n run()\n", "def check():\n assert 1\n"
    alone, both = ast.parse(tests), ast.parse(helper + tests)
    assert silent(alone, JUDGES) == ["test_a", "test_b"]
    assert silent(both, JUDGES) == silent(alone, {"check"}) == ["test_b"]
