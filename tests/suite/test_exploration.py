"""The course of a random test: the same everywhere in `make test`, another in every round of `make fuzz`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from testing import ROOT, exploration

pytestmark = pytest.mark.process

DRAWS = """
import sys
from testing.exploration import load_profile
load_profile()
from hypothesis import given, strategies as st
for name in sys.argv[1:]:
    __import__(name)
drawn = []
@given(st.integers(), st.text(), st.sets(st.sampled_from("abcdefgh")))
def draw(number, text, letters):
    drawn.append((number, text, sorted(letters)))
draw()
print(drawn)
"""


def drawn(path: Path, *modules: str, hash_seed: int, seed: int | None = None) -> str:
    """The examples that a property is given in a fresh interpreter that has imported `modules`."""
    (path / "draws.py").write_text(DRAWS)
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONPATH": str(ROOT),
    }
    environment |= {} if seed is None else {exploration.SEED: str(seed)}
    command = [sys.executable, "draws.py", *modules]
    return subprocess.run(
        command, cwd=path, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_a_property_has_the_same_examples_whatever_ran_before(tmp_path: Path) -> None:
    (tmp_path / "some_module.py").write_text(
        "NUMBERS = [77777, 88888, 99999]\nTEXT = 'a long constant of a module'\n"
    )
    alone = drawn(tmp_path, hash_seed=1)
    assert alone.count("(") >= 100
    assert alone == drawn(tmp_path, "some_module", "lbg_core.amqp", hash_seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("ci", ["true", ""])
def test_exploring_draws_other_examples_and_more_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ci: str
) -> None:
    if ci:
        monkeypatch.setenv("CI", ci)
    else:
        monkeypatch.delenv("CI", raising=False)
    same = drawn(tmp_path, hash_seed=1)
    explored = drawn(tmp_path, hash_seed=1, seed=5)
    assert explored not in (same, drawn(tmp_path, hash_seed=1, seed=5))
    assert explored.count("(") > same.count("(")


def test_targets_draw_fewer_examples_and_make_test_all_draws_all() -> None:
    makefile = (ROOT / "Makefile").read_text()
    chosen = dict(
        re.findall(r"^([a-z-]+):.*\n\t\$\(PYTEST\).*--hypothesis-profile=(\w+)", makefile, re.MULTILINE)
    )
    assert chosen == {"quick": "quick", "test": "test"}
    quick, test, full = (settings.get_profile(name).max_examples for name in ("quick", "test", "same"))
    assert quick < test < full == settings.get_profile("default").max_examples


FAILING = """
from hypothesis import given, strategies as st
from testing.exploration import over_seeds

@given(st.integers(0, 1000))
def test_property(number):
    assert number < 900

@over_seeds(2)
def test_seeded(seed):
    assert seed != 41

def test_without_chance():
    raise AssertionError
"""


def test_what_is_found_is_kept_with_the_way_to_run_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING)
    (tmp_path / "conftest.py").write_text("from testing.exploration import load_profile\nload_profile()\n")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n  seeded: x\n  slow: x\nasyncio_default_fixture_loop_scope = function\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert exploration.explore(60, 40, ["test_failing.py"]) == 1
    kept = {path.name: path.read_text() for path in (tmp_path / "out" / "fuzz").iterdir()}
    assert sorted(kept) == ["test_failing-py-test_property.txt", "test_failing-py-test_seeded-41.txt"]
    prop, seeded = (kept[name] for name in sorted(kept))
    assert "number=900" in prop
    assert "@reproduce_failure" in prop
    assert "LBG_TEST_SEED=40 python -m pytest 'test_failing.py::test_seeded[41]'" in seeded
    assert "out/fuzz/test_failing-py-test_property.txt" in capfd.readouterr().out
