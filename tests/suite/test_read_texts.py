"""Product code decides by types: it reads back no text that it has rendered for people."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from testing import ROOT

PRODUCT = ("core", "broker", "sidecar", "operator", "pipeline", "console", "cli")
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
SEARCHES = ("match", "search", "fullmatch", "findall", "sub", "finditer")
ALLOWED = {
    "core/lbg_core/admin/management.py: '[SSL' in str(error)": "Python's ssl has no class for it",
    "core/lbg_core/http_listener.py: str(error).removeprefix('400, message:')": "aiohttp has the cause in a text",
    "pipeline/lbg_pipeline/errors.py: _OURS.search(str(error))": "an error of a worker is a text of Spark's",
    "sidecar/lbg_sidecar/inbox/sqlite.py: 'no such savepoint' not in str(error)": "SQLite has no code for it",
}


def is_rendered(node: ast.expr) -> bool:
    """True for `text_of(…)`, and for `str(…)` of a name or an attribute: it may be an error or a problem."""
    match node:
        case ast.Call(func=ast.Name(id="text_of" | "line_of")):
            return True
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name) | ast.Attribute(attr=name)]):
            return name in ("cause", "error", "exc", "failure", "problem", "why", "__cause__")
    return False


def read_texts(code: str) -> Iterator[str]:
    """Expressions that look into a rendered text."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[text]) if is_rendered(text):
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in READERS and is_rendered(
                value
            ):
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr=name), args=args) if name in SEARCHES and any(
                map(is_rendered, args)
            ):
                yield ast.unparse(node)


@pytest.mark.long
def test_no_rendered_text_is_read() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {expression}"
        for folder in PRODUCT
        for path in (ROOT / folder).rglob("*.py")
        for expression in read_texts(path.read_text())
    }
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
    ],
)
def test_each_way_to_read_a_text_is_found(code: str, found: bool) -> None:
    assert bool(list(read_texts(code))) == found
