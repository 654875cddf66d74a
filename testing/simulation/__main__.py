"""Histories of new seeds, for as many simulated hours as are requested: `make simulate`.

python -m testing.simulation --hours 200
python -m testing.simulation --mode Exclusive --seed 17      # one history, with its story
python -m testing.simulation --engine RabbitMQ --assignment Static
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import sys
import time
from collections import defaultdict
from dataclasses import replace
from typing import get_args

from lbg_core.group import RABBITMQ, Assignment
from lbg_core.group.topology import EMBEDDED
from testing.simulation.context import Setting
from testing.simulation.history import History
from testing.simulation.runs import INSTALLATIONS, MODES, Result, ignore_interrupts, jobs, result_of
from testing.simulation.shrinking import shrunk


def tell(seed: int, setting: Setting) -> int:
    """One history, with what happened in it. Of one with a violation the shortest that has one."""
    history = History(seed, setting, is_verbose=True)
    if violations := history.run():
        print(f"violation at {violations[0]}\nleaving out faults as long as there is one ...", flush=True)
        history = shrunk(seed, setting, history.faults)
    print(history.timeline())
    print(f"{len(history.judge.processed)} messages; digest of all calls {history.judge.digest.hexdigest()}")
    return 1 if history.judge.violations else 0


INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 and the number of SIGINT, as shells have it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mode", choices=MODES, help="by default all, in turn")
    parser.add_argument("--engine", choices=(EMBEDDED, RABBITMQ), help="by default both")
    parser.add_argument("--assignment", choices=get_args(Assignment), help="by default all")
    parser.add_argument(
        "--parking", action=argparse.BooleanOptionalAction, help="of groups with parking; by default both"
    )
    parser.add_argument("--hours", type=float, default=4.0, help="simulated hours of all histories together")
    parser.add_argument("--seconds", type=float, default=600.0, help="simulated seconds of each history")
    parser.add_argument("--faults-per-hour", type=float, default=500.0)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--queues", type=int, default=32)
    parser.add_argument("--rate", type=float, default=20.0, help="messages a second")
    parser.add_argument("--seed", type=int, help="one history of --mode, with its story")
    parser.add_argument("--first-seed", type=int, help="by default a random one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    given = parser.parse_args()

    settings = [
        replace(
            one,
            members=given.members,
            queues=given.queues,
            rate_hz=given.rate,
            seconds=given.seconds,
            faults_per_hour=given.faults_per_hour,
        )
        for one in INSTALLATIONS
        if given.mode in (None, one.mode)
        and given.engine in (None, one.engine)
        and given.assignment in (None, one.assignment)
        and given.parking in (None, one.has_parking)
    ]
    if not settings:
        parser.error(
            "there is no such installation; on RabbitMQ mode Partitioned has the histories of Exclusive"
        )
    if given.seed is not None:
        return tell(given.seed, settings[0])
    first_seed = secrets.randbelow(10**9) if given.first_seed is None else given.first_seed
    print(f"seeds from {first_seed}; {given.jobs} processes", flush=True)
    began = time.monotonic()
    by_title: dict[str, list[Result]] = defaultdict(list)
    failed: list[Result] = []
    is_interrupted = False
    done_s = 0.0
    with multiprocessing.get_context("spawn").Pool(given.jobs, initializer=ignore_interrupts) as pool:
        try:
            for result in pool.imap_unordered(result_of, jobs(first_seed, given.hours, settings)):
                by_title[result.job.setting.title].append(result)
                done_s += result.simulated_s
                if sys.stderr.isatty():
                    print(
                        f"\r{done_s / 3600:.1f} of {given.hours:g} hours",
                        end=" ",
                        file=sys.stderr,
                        flush=True,
                    )
                if result.violations:
                    failed.append(result)
                    title = result.job.setting.title
                    print(f"{title} seed {result.job.seed}: {result.violations[0]}", flush=True)
        except KeyboardInterrupt:
            is_interrupted = True
            print("interrupted; until then:")
    real_s = time.monotonic() - began
    print(
        f"{'installation':30} {'histories':>9} {'hours':>8} {'faults':>9} {'messages':>10} {'repeats':>8} "
        f"{'by load':>8} {'violations':>10} {'x real time':>11}"
    )
    for title, results in by_title.items():
        simulated_s = sum(one.simulated_s for one in results)
        print(
            f"{title:30} {len(results):9,} {simulated_s / 3600:8.1f} {sum(one.faults for one in results):9,} "
            f"{sum(one.processed for one in results):10,} {sum(one.repeats for one in results):8,} "
            f"{sum(one.moves_by_load for one in results):8,} "
            f"{sum(bool(one.violations) for one in results):10,} "
            f"{simulated_s / sum(one.cpu_s for one in results):11.0f}"
        )
    total_s = sum(one.simulated_s for results in by_title.values() for one in results)
    print(f"{total_s / 3600:.1f} simulated hours in {real_s:.0f} s: {total_s / real_s:.0f} times real time")
    for result in failed[:3]:
        print(f"\n{result.job.setting.title} seed {result.job.seed}, with as few faults as show it:")
        print(
            shrunk(
                result.job.seed, result.job.setting, History(result.job.seed, result.job.setting).faults
            ).timeline()
        )
    return 1 if failed else INTERRUPTED if is_interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
