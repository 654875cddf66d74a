"""Tests use what is public: no private attribute of another object, no private name of another module."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from testing.trees import modules

PROGRAMS = {"simulation", "chaos", "exactly_once", "full_disk.py"}
"""Of `testing`: they replace parts of asyncio, and end a client without the ways that it has for this."""
BY_NAME = {"getattr", "setattr", "hasattr", "delattr"}
ALLOWED = {
    "testing/exploration.py: providers._get_local_constants": "Hypothesis has no setting for it",
    **dict.fromkeys(
        (
            "tests/broker/test_isolation.py: server._back_pressure",
            "tests/broker/test_isolation.py: server._back_pressure._release",
            "tests/broker/test_isolation.py: transport._extra",
            "tests/broker/test_isolation.py: victim._awaits_login",
            "tests/broker/test_isolation.py: victim._handshake",
            "tests/broker/test_isolation.py: victim._read_pause",
            "tests/broker/test_isolation.py: victim._wire",
        ),
        "faults are put into what a session alone has",
    ),
    "testing/fork_server.py: subprocess._fork_exec": "every way to start a process ends there",
    "testing/operator/metrics.py: _labelnames": "prometheus_client shows no labels of a family without samples",
}


def private_names(tree: ast.Module) -> Iterator[str]:
    """Private attributes but those of `self` and `cls`, and private names in imports and arguments of `getattr`."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Attribute(value=ast.Name(id="self" | "cls"))
                | ast.Attribute(value=ast.Name(id="os"), attr="_exit")
            ):
                pass  # `os._exit` is public
            case ast.Attribute(attr=name) if is_private(name):
                yield ast.unparse(node)
            case ast.ImportFrom(module=module, names=names):
                yield from filter(is_private, [*(module or "").split("."), *(one.name for one in names)])
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if called in BY_NAME:
                yield from (
                    text
                    for argument in node.args
                    if isinstance(argument, ast.Constant) and isinstance(text := argument.value, str)
                    if any(map(is_private, text.split(".")))
                )


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.rule
def test_no_test_reaches_into_what_is_private() -> None:
    found = {
        f"{path}: {name}"
        for path, tree in modules("testing", "tests")
        if not PROGRAMS & set(path.parts)
        for name in private_names(tree)
    }
    assert found - ALLOWED.keys() == set()
    assert ALLOWED.keys() - found == set(), "no longer needed"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("a._b.c", ["a._b"]),
        ("self.a._b", ["self.a._b"]),
        ("self._a; cls._b; a.__dict__", []),
        ("from a import _b", ["_b"]),
        ("from a._b import c", ["_b"]),
        ("getattr(a, '_b')", ["_b"]),
        ("monkeypatch.setattr('a.b._c', 1)", ["a.b._c"]),
        ("monkeypatch.setattr(a, 'b', '_c d')", ["_c d"]),
    ],
)
def test_each_way_to_reach_a_private_name_is_found(code: str, found: list[str]) -> None:
    assert list(private_names(ast.parse(code))) == found
