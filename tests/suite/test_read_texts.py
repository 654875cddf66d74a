"""Product code decides by types: it reads back no text that it has rendered for people."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

import pytest

from testing.trees import PRODUCT, modules

READERS = (
    "startswith",
    "endswith",
    "find",
    "index",
    "partition",
    "rpartition",
    "removeprefix",
    "removesuffix",
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SEARCHES = ("match", "search", "fullmatch", "findall", "sub", "finditer")
ALLOWED = {
    "core/lbg_core/admin/management.py: '[SSL' in str(error)": "Python's ssl has no class for it",
    "core/lbg_core/http_listener.py: str(error).removeprefix('400, message:')": "aiohttp has the cause in a text",
    "pipeline/lbg_pipeline/errors.py: _OURS.search(text)": "an error of a worker is a text of Spark's",
    "sidecar/lbg_sidecar/inbox/sqlite.py: 'no such savepoint' not in str(error)": "SQLite has no code for it",
}


def is_rendered(node: ast.expr, texts: Container[str] = ()) -> bool:
    """True for `text_of(…)`, for `str(…)` of a name or an attribute: it may be an error or a problem, and for a name in
    `texts`."""
    match node:
        case ast.Call(func=ast.Name(id="text_of" | "line_of" | "lines_of" | "plain_reason")):
            return True
        case ast.Name(id=name):
            return name in texts
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name) | ast.Attribute(attr=name)]):
            return name in ("cause", "error", "exc", "failure", "problem", "why", "__cause__")
    return False


def read_texts(tree: ast.Module) -> Iterator[str]:
    """Expressions that look into a rendered text, or into a name that a function gives one."""
    for scope in (tree, *(one for one in ast.walk(tree) if isinstance(one, FUNCTIONS))):
        named: list[tuple[ast.expr, ast.expr]] = []
        for node in () if scope is tree else ast.walk(scope):
            match node:
                case ast.Assign(targets=[name], value=text) | ast.NamedExpr(target=name, value=text):
                    named.append((name, text))
        texts = {one.id for one, text in named if isinstance(one, ast.Name) and is_rendered(text)}
        yield from map(ast.unparse, (node for node in ast.walk(scope) if reads(node, texts)))


def reads(node: ast.AST, texts: Container[str]) -> bool:
    match node:
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[text]):
            return is_rendered(text, texts)
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=args):
            is_read = name in READERS and is_rendered(value, texts)
            return is_read or (name in SEARCHES and any(is_rendered(one, texts) for one in args))
    return False


@pytest.mark.rule
def test_no_rendered_text_is_read() -> None:
    found = {f"{path}: {expression}" for path, tree in modules(*PRODUCT) for expression in read_texts(tree)}
    assert found - ALLOWED.keys() == set()
    assert ALLOWED.keys() - found == set(), "no longer needed"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("'a' in str(error)", True),
        ("text_of(one).startswith('a')", True),
        ("re.search('a', text_of(one))", True),
        ("str(error.__cause__).partition(':')", True),
        ("error.kind is Kind.FAILED", False),
        ("str(error) == reported", False),
        ("'a' in str(path)", False),
        ("def f(error):\n    text = str(error)\n    return text.endswith('a')", True),
        ("def f(error):\n    if 'a' in (text := str(error)): pass\n    return 'b' in text", True),
        ("def f(error, text):\n    return 'b' in text", False),
    ],
)
def test_each_way_to_read_a_text_is_found(code: str, found: bool) -> None:
    assert bool(list(read_texts(ast.parse(code)))) == found
