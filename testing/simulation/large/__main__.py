"""Large groups in virtual time: starting, at rest, crashes, a join, and wrong views.

python -m testing.simulation.large --members 16 64 256 1000
python -m testing.simulation.large --members 64 --engine rabbitmq --scenarios crash third
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from testing.simulation.large import scenarios
from testing.simulation.large.costs import EMBEDDED, RABBITMQ
from testing.simulation.large.group import BudgetExceeded, LargeGroup
from testing.simulation.large.report import Report

COSTS = {"embedded": EMBEDDED, "rabbitmq": RABBITMQ}
Scenario = Callable[[LargeGroup], Any]

SCENARIOS: dict[str, Scenario] = {
    "join": scenarios.join,
    "crash": lambda group: scenarios.crash(group, scenarios.random_members(group, 1)),
    "third": lambda group: scenarios.crash(group, scenarios.random_members(group, len(group.up) // 3)),
    "neighbours": lambda group: scenarios.crash(group, scenarios.neighbours(group, len(group.up) // 3)),
    "stale": scenarios.stale_views,
    "deaf-10": lambda group: scenarios.deafness(group, 0.1),
    "deaf-50": lambda group: scenarios.deafness(group, 0.5),
}
"""Each begins with the group as it was after its time at rest."""


def in_copy(scenario: Scenario, group: LargeGroup) -> Any:
    """Runs it on a copy of the group, in a process of its own; None if it used up its CPU time."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work(sender: Connection[Any, Any]) -> None:
        try:
            sender.send(scenario(group))
        except BudgetExceeded:
            sender.send(None)

    process = context.Process(target=work, args=(sender,))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        raise RuntimeError(f"a scenario ended without a result: status {process.exitcode}") from None
    finally:
        process.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--scenarios", nargs="*", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=COSTS, default="embedded")
    parser.add_argument("--cpu-s", type=float, help="CPU time of each scenario, at most")
    given = parser.parse_args()
    gc.disable()
    is_met = True
    for members in given.members:
        report = Report(members)
        print(report.title, flush=True)
        began = time.process_time()
        with LargeGroup(
            members,
            COSTS[given.engine],
            seed=given.seed,
            on_rabbitmq=given.engine == "rabbitmq",
            cpu_budget_s=None if given.cpu_s is None else began + given.cpu_s,
        ) as group:
            try:
                report.start(scenarios.start(group))
                report.rest(scenarios.rest(group))
            except BudgetExceeded:
                report.exceeded(f"the CPU time is used up at {group.clock.now:.1f} s of virtual time")
            else:
                report.used(group.clock.now, time.process_time() - began, resident_mb())
                if group.agreed_at is None:
                    report.exceeded("the members do not agree: the other scenarios are left out")
                else:
                    for name in given.scenarios:
                        report.scenario(name, in_copy(SCENARIOS[name], group))
        is_met = report.bars() and is_met
        del group
        gc.collect()
    return 0 if is_met else 1


def resident_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    sys.exit(main())
