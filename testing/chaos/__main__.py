"""`python -m testing.chaos --engine embedded` (docs/internals/chaos.md). Exit status 1: a promise was broken."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import random
import shutil
import sys
import tempfile
from pathlib import Path

from testing.chaos.evidence import history_of, judge_directory
from testing.chaos.run import run
from testing.chaos.schedule import WEIGHTS, Sizes
from testing.chaos.verdict import Verdict

CLUSTER_NODES = 3
CHAOTIC_MODES = ("Exclusive", "Partitioned", "MessageGroups")
"""Sessions keep no order of keys to judge; `make exactly-once` breaks those."""


def main() -> int:
    arguments = parse()
    if arguments.judge is not None:
        return 0 if tell(judge_directory(arguments.judge), [], arguments.judge) else 1
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1_000_000)
    ok = True
    for engine in arguments.engine or ["embedded", "rabbitmq"]:
        sizes = sizes_of(arguments, engine)
        print(f"\n{engine}: {replay_of(engine, seed, sizes)}", flush=True)
        directory = Path(arguments.keep or tempfile.mkdtemp(prefix="lbg-chaos-"))
        directory = directory / engine
        directory.mkdir(parents=True)
        verdict, problems = asyncio.run(run(engine, seed, sizes, directory))
        passed = tell(verdict, problems, directory)
        if not passed:
            print(f"everything is kept in {directory}; again: {replay_of(engine, seed, sizes)}", flush=True)
        elif arguments.keep is None:
            shutil.rmtree(directory.parent)
        ok = ok and passed
    return 0 if ok else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m testing.chaos", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--engine", action="append", choices=sorted(WEIGHTS), help="by default embedded, then rabbitmq"
    )
    parser.add_argument("--seed", type=int, help="by default random, and printed")
    for field in dataclasses.fields(Sizes):
        if field.name != "nodes":
            parser.add_argument(
                f"--{field.name.replace('_', '-')}",
                type=type(field.default),
                choices=CHAOTIC_MODES if field.name == "mode" else None,
                default=field.default,
                help="default %(default)s",
            )
    parser.add_argument(
        "--minutes", type=float, help="as many faults as fit into this time, and as many messages"
    )
    parser.add_argument("--keep", type=Path, help="keep everything, in this new directory")
    parser.add_argument(
        "--judge", type=Path, metavar="DIRECTORY", help="judge what an earlier run left there"
    )
    return parser.parse_args()


def sizes_of(arguments: argparse.Namespace, engine: str) -> Sizes:
    given = {
        field.name: getattr(arguments, field.name)
        for field in dataclasses.fields(Sizes)
        if field.name != "nodes"
    }
    sizes = Sizes(**given, nodes=CLUSTER_NODES if engine == "cluster" else 1)
    if arguments.minutes is None:
        return sizes
    faults = max(1, round(arguments.minutes * 60 / sizes.fault_every_s))
    return dataclasses.replace(sizes, faults=faults, messages=faults * sizes.messages // sizes.faults)


def replay_of(engine: str, seed: int, sizes: Sizes) -> str:
    """The command that plays the same faults and messages again."""
    options = " ".join(
        f"--{field.name.replace('_', '-')} {getattr(sizes, field.name)}"
        for field in dataclasses.fields(Sizes)
        if field.name != "nodes" and getattr(sizes, field.name) != field.default
    )
    return f'make chaos CHAOS_ARGS="--engine {engine} --seed {seed}{" " if options else ""}{options}"'


def tell(verdict: Verdict, problems: list[str], directory: Path) -> bool:
    """Print what came of it; returns whether every promise was kept."""
    counts = verdict.counts
    print(
        f"{verdict.messages:,} messages, {verdict.calls:,} calls: {counts['lost']} lost, "
        f"{counts['order']} out of order, {counts['lanes']} twice at once in one member"
    )
    repeats = ", ".join(f"{count} {why}" for why, count in sorted(verdict.repeats.items()) if count)
    print(
        f"repeated: {sum(verdict.repeats.values())} ({repeats or 'none'}), of one queue and loss at most "
        f"{verdict.most_repeated}; not explained: {counts['repeats']}"
    )
    print(
        f"calls that went on after a lost connection beside the next member's: {verdict.overlaps}, the longest "
        f"{verdict.longest_overlap_s:.3f} s; without a lost connection or for too long: {counts['fencing']}"
    )
    print(f"refused: {verdict.dropped} calls; wrong key or sequence: {counts['identity']}")
    for violation in verdict.violations:
        print(f"{violation.what}: message {violation.name}: {violation.text}")
        print("\n".join(history_of(directory, violation.name)))
    for problem in problems:
        print(f"problem: {problem}")
    passed = not verdict.violations and not problems
    print("passed: every promise was kept" if passed else "FAILED", flush=True)
    return passed


if __name__ == "__main__":
    sys.exit(main())
