"""Folders of tests mirror the product: each is named by the package or module that its tests are of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing import ROOT

PACKAGES = {
    "core": ROOT / "core" / "lbg_core",
    "broker": ROOT / "broker" / "lbg_broker",
    "sidecar": ROOT / "sidecar" / "lbg_sidecar",
    "operator": ROOT / "operator" / "lbg_operator",
    "pipeline": ROOT / "pipeline" / "lbg_pipeline",
    "cli": ROOT / "cli" / "lbgroup",
    "testing": ROOT / "testing",
}


def strangers(tests: Path, package: Path) -> Iterator[str]:
    """Folders below `tests` with a test, for which `package` has neither a folder nor a module."""
    for folder in sorted({file.parent for file in tests.rglob("test_*.py")}):
        name = folder.relative_to(tests)
        if not (package / name).is_dir() and not (package / name).with_suffix(".py").is_file():
            yield str(name)


@pytest.mark.rule
@pytest.mark.parametrize("name", PACKAGES)
def test_each_folder_of_tests_is_that_of_a_package_or_a_module(name: str) -> None:
    assert list(strangers(ROOT / "tests" / name, PACKAGES[name])) == []


def test_a_folder_of_tests_without_a_package_or_module_is_found(tmp_path: Path) -> None:
    tests, package = tmp_path / "tests", tmp_path / "package"
    for file in (
        *(package / "store" / "__init__.py", package / "store" / "schema.py", package / "journal.py"),
        *(
            tests / "test_all.py",
            tests / "journal" / "test_lines.py",
            tests / "store" / "schema" / "test_it.py",
        ),
        *(
            tests / "reserve" / "test_it.py",
            tests / "store" / "lines" / "test_it.py",
            tests / "data" / "rows.py",
        ),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert list(strangers(tests, package)) == ["reserve", "store/lines"]


@pytest.mark.rule
def test_no_test_imports_a_benchmark() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"^\s*(from|import) bench\b", path.read_text(), re.MULTILINE)
    ]
    assert found == []
