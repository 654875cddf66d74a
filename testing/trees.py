"""Syntax trees of the repository's modules, each parsed once by a process."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from testing import ROOT

PRODUCT = ("core", "broker", "sidecar", "operator", "pipeline", "console", "cli")
TESTS = ("bench", "testing", "tests", "e2e")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def modules(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    """Path below the repository and tree of each module in these folders, in the order of their names."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "node_modules" not in path.parts:
                yield path.relative_to(ROOT), tree_of(path)
