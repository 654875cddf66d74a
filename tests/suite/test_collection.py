"""What the tests are is the same in every collection, and collecting them loads nothing large."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LARGE = {"helm_python", "matplotlib", "pandas", "pyspark"}
"""Each takes longer to load than the tests of a whole folder: a fixture does, when the first test needs it."""

PLUGIN = """
import json, os, sys, time
real, real_ns, shift_s = time.time, time.time_ns, int(os.environ["SHIFT_S"])
time.time = lambda: real() + shift_s
time.time_ns = lambda: real_ns() + shift_s * 10**9

def pytest_collection_finish(session):
    with open(os.environ["FOUND"], "w") as file:
        json.dump([[item.nodeid for item in session.items], sorted(sys.modules)], file)
"""


def collected(path: Path, paths: list[str], *, hash_seed: int, shift_s: int) -> tuple[list[str], list[str]]:
    """What a fresh interpreter collects under this clock: the ids in their order, and the modules it loaded."""
    (path / "observer.py").write_text(PLUGIN)
    found = path / f"found-{hash_seed}.json"
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONPATH": str(path),
        "SHIFT_S": str(shift_s),
        "FOUND": str(found),
    }
    options = ["-p", "observer", "-p", "no:cacheprovider", "--assert=plain", "--collect-only", "-qq"]
    command = [sys.executable, "-m", "pytest", *options, *paths]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    ids, modules = json.loads(found.read_text())
    return ids, modules


@pytest.mark.timeout(600)
def test_the_tests_are_the_same_whenever_they_are_collected_and_load_nothing_large(tmp_path: Path) -> None:
    first, loaded = collected(tmp_path, [], hash_seed=1, shift_s=0)
    again, _ = collected(tmp_path, [], hash_seed=2, shift_s=400 * 24 * 3600)
    assert len(first) > 1000
    different = [pair for pair in zip(first, again, strict=False) if pair[0] != pair[1]]
    assert different[:5] == []
    assert len(first) == len(again)
    assert len(set(first)) == len(first)
    assert LARGE & set(loaded) == set()


@pytest.mark.parametrize(
    "values",
    ["[f'{time.time():.0f}']", "[gzip.compress(b'x')]", "{'a', 'b', 'c', 'd', 'e'}", "[secrets.token_hex()]"],
)
def test_an_id_that_depends_on_time_order_or_chance_is_found(tmp_path: Path, values: str) -> None:
    test = tmp_path / "test_changing.py"
    test.write_text(
        f"import gzip, secrets, time\nimport pytest\n@pytest.mark.parametrize('x', {values})\ndef test_one(x): ...\n"
    )
    first, _ = collected(tmp_path, [str(test)], hash_seed=1, shift_s=0)
    assert first != collected(tmp_path, [str(test)], hash_seed=2, shift_s=1000)[0]
