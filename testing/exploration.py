"""Random exploration: what `make fuzz` runs, and how it differs from `make test`.

In `make test` and `make test-all` every test has the same course in every run and on every machine. `python -m
testing.exploration` runs those with a random course (properties, and tests `over_seeds`) again and again with new seeds
until the time is up. What fails is reported into a file each, with the way to keep it, and Hypothesis tries it first
when that test is explored again. `make quick` and `make test` give properties few examples, `make test-all` all.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

FOUND = Path("out", "fuzz")
"""In the folder where it runs."""
SEED = "LBG_TEST_SEED"
"""The variable that turns exploration on, a number from 1: the first of the seeds that tests `over_seeds` are given."""
FEW_EXAMPLES = {"quick": 6, "test": 12}
"""For each property in `make quick` and `make test`, also where it names more."""
EXAMPLES = 500
"""For each property that names no number of its own."""
NOTHING_FAILED, SOME_FAILED, NO_TESTS = 0, 1, 5
"""Exit codes of pytest."""

HOW_TO_KEEP = """
To run it again:
    {command}
To keep it: put the arguments above as `@example(...)` on the property; or, where they come from `st.data()`, from a
state machine or from a seed, write what happens as a test of its own, named after what it shows. Then mend what it
found.
"""


def load_profile() -> None:
    """Settles how Hypothesis draws: the same examples everywhere, or others in every run."""
    # A machine that is slow for a moment proves nothing: no example is failed for its time.
    untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
    settings.register_profile("same", untimed, derandomize=True, database=None)
    for target, few in FEW_EXAMPLES.items():
        settings.register_profile(target, untimed, derandomize=True, database=None, max_examples=few)
    found = DirectoryBasedExampleDatabase(Path(".hypothesis", "examples"))
    # Said in full: where the variable CI is set, Hypothesis' own default is to draw the same examples.
    settings.register_profile("explore", untimed, derandomize=False, max_examples=EXAMPLES, database=found)
    settings.load_profile("explore" if SEED in os.environ else "same")
    if SEED not in os.environ:
        # Hypothesis draws values from the source of all that is imported: which is what ran before, and only where
        # no folder above the checkout is named "test".
        providers._get_local_constants = Constants


def example_count(count: int, *, of_few: float = 1.0) -> int:
    """So many examples for a property, or the few of a target: its profile is loaded before tests are collected.

    `of_few`: the share of the few for a property whose examples take long.
    """
    few = FEW_EXAMPLES.get(settings.get_current_profile_name())
    return count if few is None else min(count, round(few * of_few))


def repetitions(count: int, *, few: int) -> int:
    """So many repetitions of a test that has no examples, or the few of `make quick` and `make test`."""
    return few if settings.get_current_profile_name() in FEW_EXAMPLES else count


def over_seeds(count: int) -> pytest.MarkDecorator:
    """Runs the test once for each of so many seeds: 0 and on, or when exploring such as nobody has tried."""
    first = int(os.environ.get(SEED, "0"))
    marks = [(pytest.mark.seeded, pytest.mark.slow) if n else (pytest.mark.seeded,) for n in range(count)]
    return pytest.mark.parametrize("seed", [pytest.param(first + n, marks=marks[n]) for n in range(count)])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--explore-until", type=float, help="seconds since the epoch at which to stop")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files into an order that the seed gives, so that short explorations together go everywhere."""
    files = sorted({item.path for item in items})
    random.Random(int(os.environ[SEED])).shuffle(files)
    place = {path: number for number, path in enumerate(files)}
    items.sort(key=lambda item: place[item.path])


class Finds:
    """Writes a file for each test that fails, and ends the run when the time is up."""

    def __init__(self, config: pytest.Config) -> None:
        self._until = config.getoption("--explore-until")
        self.session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            FOUND.mkdir(parents=True, exist_ok=True)
            name = re.sub(r"\W+", "-", report.nodeid.removeprefix("tests/"))[:150].strip("-")
            command = f"{SEED}={os.environ[SEED]} {shlex.join(['python', '-m', 'pytest', report.nodeid])}"
            text = f"{report.nodeid}\n\n{report.longreprtext}\n{HOW_TO_KEEP.format(command=command)}"
            (FOUND / f"{name}.txt").write_text(text)

    def pytest_runtest_logfinish(self) -> None:
        if self.session is not None and self._until is not None and time.time() > self._until:
            self.session.shouldstop = "the time is up"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # in a worker of xdist, whose reports go to its controller
        config.pluginmanager.register(Finds(config))


def explore(minutes: float, first_seed: int, told: list[str]) -> int:
    """Runs rounds until one finds something or the time is up; the exit code. `told`: arguments for pytest."""
    until, seed = time.time() + 60 * minutes, first_seed
    before = found()
    while True:
        print(f"{SEED}={seed}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "testing.exploration", "-m"]
        command += ["(hypothesis or seeded) and not cluster", "--no-loadscope-reorder"]
        command += [f"--explore-until={until}", *told]
        code = subprocess.run(command, env={**os.environ, SEED: str(seed)}, check=False).returncode
        new = {path: changed for path, changed in found().items() if before.get(path) != changed}
        if new:
            print("\nFound, each with the way to keep it:")
            print("\n".join(f"  {path}" for path in sorted(new)))
            return SOME_FAILED
        if time.time() >= until:
            return NOTHING_FAILED
        if code != NOTHING_FAILED:
            return code
        seed += 1000


def found() -> dict[Path, int]:
    """The files of what failed, and when each was written, in ns since the epoch."""
    return {path: path.stat().st_mtime_ns for path in FOUND.glob("*.txt")}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make fuzz FUZZ_ARGS=…",
        description="Run the random tests with other seeds; other arguments are pytest's.",
    )
    parser.add_argument("--minutes", type=float, default=10, help="how long to go on (default: 10)")
    parser.add_argument("--seed", type=int, help="the seed of the first round (default: a random one)")
    known, told = parser.parse_known_args()
    seed = random.SystemRandom().randrange(1, 2**31) if known.seed is None else known.seed
    return explore(known.minutes, seed, told)


if __name__ == "__main__":
    sys.exit(main())
