"""`lbg pipeline validate` beside DuckDB with the same checks in SQL and the live validator's Python, on one journal.

The journal is made first, with faults at known places, and read once, so that all find it in memory. Each contender is
a process of its own; they take turns, as often as there are rounds, and every answer has to be the expected one.
`python -m bench.pipeline --records 20000000 --rounds 3`; `--directory DIR` keeps the journal, or takes the one in it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.measurement import Measurement
from bench.pipeline import duck, ours
from testing.pipeline import live
from testing.pipeline.answers import Answer
from testing.pipeline.journal_generator import generate
from testing.pipeline.live import asked_of

OURS, DUCKDB, LIVE = "lbg pipeline validate", "DuckDB", "live validator's Python"


@dataclass(frozen=True)
class Contender:
    """`name` and `cores` as in the table; `module` with its arguments."""

    name: str
    cores: int
    module: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}, {self.cores} core{'s' if self.cores > 1 else ''}"


@dataclass(frozen=True)
class Run:
    """Seconds: of the whole process, of the job in it once all is loaded and started, and of the job's steps."""

    whole_s: float
    job_s: float
    steps_s: dict[str, float]


def contenders(memory_gb: int) -> dict[str, Contender]:
    """By what --only calls them."""
    memory = f"{memory_gb}GB"
    return {
        "ours": Contender(OURS, 2, ours.__name__, ("--cores", "2", "--memory", f"{memory_gb}g")),
        "ours1": Contender(OURS, 1, ours.__name__, ("--cores", "1", "--memory", f"{memory_gb}g")),
        "duckdb": Contender(DUCKDB, 2, duck.__name__, ("--threads", "2", "--memory", memory)),
        "duckdb1": Contender(DUCKDB, 1, duck.__name__, ("--threads", "1", "--memory", memory)),
        "live": Contender(LIVE, 1, live.__name__),
    }


def run(contender: Contender, journal: Path, expected: Answer) -> Run:
    """Raises SystemExit with the differences if the answer is another one."""
    with tempfile.TemporaryDirectory(prefix="lbg-bench-", dir=journal.parent) as scratch:
        arguments = [*contender.arguments, *(["--scratch", scratch] if contender.name != LIVE else [])]
        # A JVM beside its Python workers has use for a second core, whatever its number of tasks.
        cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))[: contender.cores]))
        argv = ["taskset", "--cpu-list", cpus, sys.executable, "-m", contender.module]
        argv += [str(journal), *arguments]
        begun = time.monotonic()
        told = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout)
        whole_s = time.monotonic() - begun
    answer = Answer.of_json(json.dumps(told["answer"]))
    if differences := answer.differences(asked_of(expected) if contender.name == LIVE else expected):
        raise SystemExit(f"{contender} gives another answer than expected: {'; '.join(differences)}")
    return Run(whole_s, told["job_s"], told.get("steps_s", {}))


def measure(
    chosen: list[Contender], journal: Path, expected: Answer, rounds: int
) -> dict[Contender, list[Run]]:
    found: dict[Contender, list[Run]] = {contender: [] for contender in chosen}
    _read_once(journal)
    for _ in range(rounds):
        for contender in chosen:
            found[contender].append(run(contender, journal, expected))
            latest = found[contender][-1]
            steps = ", ".join(
                f"{name} {took_s:.1f}" for name, took_s in latest.steps_s.items() if took_s >= 0.1
            )
            print(f"{contender}: {latest.job_s:.1f} s ({steps or 'one step'})", file=sys.stderr, flush=True)
    return found


def _read_once(journal: Path) -> None:
    for file in journal.iterdir():
        with file.open("rb", buffering=0) as opened:
            while opened.read(1 << 24):
                pass


def print_table(found: dict[Contender, list[Run]], records: int) -> None:
    """Ratios are medians of the rounds' ratios, of jobs: what came before them is in the last column."""
    columns = (DUCKDB, LIVE, OURS)
    print("| | cores | job, s | records/s | of DuckDB | times live | times one core | start, s |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for contender, runs in found.items():
        job_s = statistics.median(one.job_s for one in runs)
        start_s = statistics.median(one.whole_s - one.job_s for one in runs)
        ratios = []
        for name in columns:
            cores = contender.cores if name == DUCKDB else 1
            beside = next(
                (runs for other, runs in found.items() if (other.name, other.cores) == (name, cores)), None
            )
            wanted = beside is not None and (name != OURS or contender.name == OURS)
            ratios.append(f"{_ratio(beside, runs):.2f}" if wanted and beside is not None else "")
        print(
            f"| {contender.name} | {contender.cores} | {job_s:.1f} | {records / job_s:,.0f} | {' | '.join(ratios)} "
            f"| {start_s:.1f} |"
        )


def _ratio(theirs: list[Run], ours: list[Run]) -> float:
    """Ratio of the two speeds, over 1 if ours is the faster one."""
    return statistics.median(one.job_s / other.job_s for one, other in zip(theirs, ours, strict=True))


def main() -> None:
    parser = Measurement(__doc__)
    parser.add_argument("--records", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-gb", type=int, default=4, help="of Spark's driver, and of DuckDB")
    parser.add_argument("--directory", type=Path, help="holds a generated journal, or will")
    parser.add_argument(
        "--only", action="append", choices=[*contenders(1)], help="by default all but duckdb1; repeatable"
    )
    arguments = parser.asked()
    chosen = [
        contenders(arguments.memory_gb)[name]
        for name in arguments.only or ("ours", "ours1", "duckdb", "live")
    ]
    with ExitStack() as stack:
        directory, expected = _journal(stack, arguments)
        records = expected.published + expected.delivered
        found = measure(chosen, directory / "journal", expected, arguments.rounds)
    print(
        f"{records:,} records, median of {arguments.rounds} rounds; lost {len(expected.lost)}, offences "
        f"{len(expected.offences)}, moves {expected.moves}, broken lines {expected.broken_lines}: found by all\n"
    )
    print_table(found, records)


def _journal(stack: ExitStack, arguments: argparse.Namespace) -> tuple[Path, Answer]:
    directory: Path = arguments.directory
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="lbg-bench-pipeline-"))
        stack.callback(shutil.rmtree, directory)
    if (directory / "expected.json").exists():
        return directory, Answer.of_json((directory / "expected.json").read_text())
    begun = time.monotonic()
    expected = generate(directory, arguments.records)
    print(f"journal made in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return directory, expected


if __name__ == "__main__":
    main()
