"""Tests are the same in every collection, each is in a target, and loads no large module."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from testing import ROOT
from testing.needs import SERVERS

pytestmark = [pytest.mark.process, pytest.mark.rule]

LARGE = {"helm_python", "matplotlib", "pandas", "pyspark"}
"""Each takes longer to load than the tests of a whole folder: a fixture does, when the first test needs it."""

PLUGIN = """
import json, os, sys, time
real, real_ns, shift_s = time.time, time.time_ns, int(os.environ["SHIFT_S"])
time.time = lambda: real() + shift_s
time.time_ns = lambda: real_ns() + shift_s * 10**9

def pytest_collection_finish(session):
    with open(os.environ["FOUND"], "w") as file:
        marks = {item.nodeid: [mark.name for mark in item.iter_markers()] for item in session.items}
        json.dump([[item.nodeid for item in session.items], marks, sorted(sys.modules)], file)
"""


@dataclass(frozen=True)
class Collected:
    """The tests of a collection: their ids in order, the marks of each, and the modules that were loaded."""

    ids: list[str]
    marks: dict[str, list[str]]
    modules: list[str]


def collected(path: Path, paths: list[str], *, hash_seed: int, shift_s: int) -> Collected:
    """Tests that a fresh interpreter collects under this clock."""
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
    return Collected(*json.loads(found.read_text()))


@pytest.fixture(scope="module")
def collections(process: None, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Collected]:
    """Every test, now, and as if in a year with another order of sets."""

    def collect(seed: int, shift_s: int) -> Collected:
        return collected(tmp_path_factory.mktemp("collection"), [], hash_seed=seed, shift_s=shift_s)

    with ThreadPoolExecutor() as pool:
        return list(pool.map(collect, (1, 2), (0, 400 * 24 * 3600)))


@pytest.fixture(scope="module")
def everything(collections: Sequence[Collected]) -> Collected:
    return collections[0]


def test_the_tests_are_the_same_whenever_they_are_collected_and_load_nothing_large(
    collections: Sequence[Collected],
) -> None:
    everything, later = collections
    assert everything.ids == later.ids
    assert len(set(everything.ids)) == len(everything.ids) > 1000
    assert LARGE & set(everything.modules) == set()


def selected(target: str, tests: Collected) -> set[str]:
    """The tests that a target of the Makefile runs: by its expression of marks, its paths and what it ignores."""
    recipe = re.search(rf"^{target}:.*\n\t.*\$\(PYTEST\) (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None, target
    words = shlex.split(recipe[1].replace("$(AT_ONCE)", ""))
    expression = compile(words[words.index("-m") + 1], target, "eval")
    ignored = tuple(f"{word.partition('=')[2]}/" for word in words if word.startswith("--ignore="))
    paths = tuple(f"{word}/" for word in words if word.startswith("tests")) or ("tests/",)
    return {
        one
        for one in tests.ids
        if one.startswith(paths)
        and not one.startswith(ignored or ("nowhere",))
        and eval(expression, {}, defaultdict(bool, dict.fromkeys(tests.marks[one], True)))
    }


def test_every_test_is_in_a_target_and_each_target_has_the_tests_of_the_one_before(
    everything: Collected,
) -> None:
    quick, test, test_all, cluster, browser, rules = (
        selected(target, everything)
        for target in ("quick", "test", "test-all", "test-cluster", "test-browser", "rules")
    )
    assert quick < test < test_all
    assert cluster
    assert browser
    assert rules
    assert test_all & (cluster | browser | rules) == set()
    assert sorted(set(everything.ids) - test_all - cluster - browser - rules) == []


def test_the_tests_of_a_server_are_together_and_first_and_those_without_a_process_last(
    everything: Collected,
) -> None:
    """The order in which a run in several processes begins them (`testing.shares`)."""
    needs = [
        next((mark for mark in SERVERS if mark in everything.marks[one]), None)
        or ("installation" if one.startswith("tests/testing/") else None)
        or ("process" if "process" in everything.marks[one] else "nothing")
        for one in everything.ids
    ]
    begun = next(n for n, need in enumerate(needs) if need != "rabbitmq")
    own = {"rabbitmq": "process"}  # a node of the test's own
    later = [need for need, _ in groupby(own.get(need, need) for need in needs[begun:])]
    assert begun
    assert later == [*SERVERS[1:], "installation", "process", "nothing"]


def test_every_file_on_rabbitmq_and_the_smoke_test_of_sparks_jobs_are_in_make_test(
    everything: Collected,
) -> None:
    def files(tests: Iterable[str], mark: str) -> set[str]:
        return {one.split("::")[0] for one in tests if mark in everything.marks[one]}

    test = selected("test", everything)
    about = {
        file
        for file in files(everything.ids, "rabbitmq")
        if file.startswith("tests/rabbitmq") and "test_facts" not in file
    }
    assert len(about) > 5
    assert sorted(about - files(test, "rabbitmq") - files(everything.ids, "cluster")) == []
    assert "tests/pipeline/test_jobs.py" in files(test, "spark")


CHANGING = {
    "time": "[f'{time.time():.0f}']",
    "time_in_bytes": "[gzip.compress(b'x')]",
    "order": "{'a', 'b', 'c', 'd', 'e'}",
    "chance": "[secrets.token_hex()]",
}


def test_an_id_that_depends_on_time_order_or_chance_is_found(tmp_path: Path) -> None:
    test = tmp_path / "test_changing.py"
    tests = (
        f"@pytest.mark.parametrize('x', {values})\ndef test_{name}(x): ...\n"
        for name, values in CHANGING.items()
    )
    test.write_text("import gzip, secrets, time\nimport pytest\n" + "".join(tests))
    first, again = (
        collected(tmp_path, [str(test)], hash_seed=seed, shift_s=shift_s).ids
        for seed, shift_s in ((1, 0), (2, 1000))
    )
    for name in CHANGING:
        assert [one for one in first if f"test_{name}[" in one] != [
            one for one in again if f"test_{name}[" in one
        ]
