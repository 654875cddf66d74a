"""Many histories, each a job for a process."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

from lbg_core.group import BY_LOAD, EXCLUSIVE, MESSAGE_GROUPS, PARTITIONED, RABBITMQ, SESSIONS, STATIC
from testing.simulation.context import Setting
from testing.simulation.history import History

MODES = (EXCLUSIVE, PARTITIONED, MESSAGE_GROUPS, SESSIONS)
GARBAGE_OBJECTS = 100_000
"""New objects until the garbage collector runs: few of them are in cycles, and by default it takes 5 % of the time."""
INSTALLATIONS = (
    *(Setting(mode=mode) for mode in MODES),
    Setting(assignment=STATIC),
    Setting(engine=RABBITMQ),
    Setting(engine=RABBITMQ, assignment=STATIC),
    Setting(assignment=BY_LOAD),
    Setting(engine=RABBITMQ, assignment=BY_LOAD),
    Setting(has_parking=True),
    Setting(engine=RABBITMQ, has_parking=True),
)
"""All that a simulation has, each in turn. On RabbitMQ a history of mode Partitioned is that of mode Exclusive."""


@dataclass(frozen=True, slots=True)
class Job:
    seed: int
    setting: Setting


@dataclass(frozen=True, slots=True)
class Result:
    job: Job
    simulated_s: float
    cpu_s: float
    faults: int
    processed: int
    repeats: int
    moves_by_load: int
    violations: tuple[str, ...]


def result_of(job: Job) -> Result:
    gc.set_threshold(GARBAGE_OBJECTS)
    began = time.process_time()
    history = History(job.seed, job.setting)
    violations = history.run()
    return Result(
        job,
        history.clock.now,
        time.process_time() - began,
        len(history.faults),
        len(history.judge.processed),
        history.judge.repeats,
        history.judge.moves_by_load,
        tuple(violations),
    )


def jobs(first_seed: int, hours: float, settings: list[Setting]) -> Iterator[Job]:
    """As many histories of each mode."""
    count = max(1, round(hours * 3600 / settings[0].seconds / len(settings)))
    for number in range(count):
        for setting in settings:
            yield Job(first_seed + number, setting)


def ignore_interrupts() -> None:
    """Of a worker: Ctrl-C goes to all processes, and the first one ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
