"""docs/internals/ARCHITECTURE.md: every path and function that it names exists, and it names every import contract."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

from testing import ROOT

PAGE = (ROOT / "docs/internals/ARCHITECTURE.md").read_text()
PACKAGES = {
    "lbg_core": "core",
    "lbg_broker": "broker",
    "lbg_sidecar": "sidecar",
    "lbg_operator": "operator",
    "lbg_pipeline": "pipeline",
    "lbg_console": "console",
    "lbgroup": "cli",
}
PATH = re.compile(r"`((?:lbg_\w+|lbgroup|[a-z]\w*)/[\w./*-]*|[\w/]+\.(?:py|toml))(?:: ([\w.]+))?`")


def path_of(named: str) -> Path:
    first = named.split("/")[0]
    return ROOT / PACKAGES.get(first, "") / named


@cache
def definitions(path: Path) -> frozenset[str]:
    """Functions, classes and methods of a module, as `f`, `C` and `C.f`, inherited ones too."""
    names: set[str] = set()
    methods: dict[str, set[str]] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            own = {
                part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            for base in node.bases:
                own |= methods.get(base.id, set()) if isinstance(base, ast.Name) else set()
            methods[node.name] = own
            names |= {node.name, *(f"{node.name}.{method}" for method in own)}
    return frozenset(names)


def test_every_path_exists() -> None:
    named = [path for line in re.findall(r"`[^`\n]+`", PAGE) for path, _ in PATH.findall(line)]
    assert len(named) > 100
    assert not [one for one in named if not path_of(one).exists()]


def test_every_function_is_in_the_file_that_is_named() -> None:
    named = [(path, name) for path, name in PATH.findall(PAGE) if name]
    assert len(named) > 50
    assert not [f"{path}: {name}" for path, name in named if name not in definitions(path_of(path))]


def test_every_folder_of_tests_exists_and_every_target() -> None:
    assert not [one for one in re.findall(r"\btests/[\w/.]+\w", PAGE) if not (ROOT / one).exists()]
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`make ([a-z][\w-]*)", PAGE)) <= targets


def test_the_table_of_contracts_has_each_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    section = PAGE.split("## Import contracts")[1].split("\n## ")[0]
    rows = [row for row in re.findall(r"^\| (.+?) \|", section, re.M) if row not in ("contract", "---")]
    assert rows == [contract["name"] for contract in contracts]


def test_every_picture_is_closed_and_of_a_kind_that_github_draws() -> None:
    fences = re.findall(r"^```(.*)$", PAGE, re.M)
    assert fences == ["mermaid", ""] * (len(fences) // 2)
    pictures = re.findall(r"^```mermaid\n(.*?)^```$", PAGE, re.M | re.S)
    assert len(pictures) == 4
    for picture in pictures:
        assert re.match(r"flowchart (TD|LR)\n|sequenceDiagram\n", picture)
        for opening, closing in ("[]", "()", "{}"):
            assert picture.count(opening) == picture.count(closing)
        assert picture.count('"') % 2 == 0
