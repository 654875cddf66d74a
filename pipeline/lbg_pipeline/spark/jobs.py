"""Concurrent Spark jobs, and their progress on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession


Answer = TypeVar("Answer")

AT_ONCE = 4
"""Spark plans a query in one thread, and little data is planned for longer than it is counted."""


def run_concurrently(jobs: Iterable[Callable[[], Answer]]) -> list[Answer]:
    """Runs jobs at the same time and returns their results in order. Where some fail, the first of these is raised
    when those that have begun are done."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="jobs") as threads:
        begun = [threads.submit(job) for job in jobs]
        try:
            return [one.result() for one in begun]
        finally:
            threads.shutdown(cancel_futures=True)


BAR_EVERY_S = 0.25
LINE_EVERY_S = 10.0
BAR_WIDTH = 30


@dataclass(frozen=True, slots=True)
class Tasks:
    """Of the stages that run now. Spark plans the stages of a query one after the other, so the total is unknown."""

    done: int
    of: int


class Progress:
    """`begin` names a phase; `show` adds how many of its tasks are done."""

    def __init__(self, stream: TextIO, *, started_s: float) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._started_s = started_s
        self._shown_s = started_s
        self._phase = ""
        self._lock = threading.Lock()

    @property
    def every_s(self) -> float:
        return BAR_EVERY_S if self._is_terminal else LINE_EVERY_S

    def begin(self, phase: str) -> None:
        with self._lock:
            self._phase = phase
            if not self._is_terminal:
                self._write(f"{phase} …\n")

    def show(self, tasks: Tasks, *, now_s: float) -> None:
        with self._lock:
            if not tasks.of or now_s - self._shown_s < self.every_s:
                return
            self._shown_s = now_s
            elapsed = f"{now_s - self._started_s:.0f} s"
            if self._is_terminal:
                filled = BAR_WIDTH * tasks.done // tasks.of
                bar = "█" * filled + "░" * (BAR_WIDTH - filled)
                self._write(f"\r\x1b[K{self._phase} {bar} {tasks.done}/{tasks.of} tasks, {elapsed}")
            else:
                self._write(f"{self._phase}: {tasks.done}/{tasks.of} tasks, {elapsed}\n")

    def end(self) -> None:
        with self._lock:
            if self._is_terminal:
                self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


@contextmanager
def shown_progress(spark: SparkSession, *, stream: TextIO | None = None) -> Iterator[Progress]:
    """Watches the jobs of `spark` until its end."""
    progress = Progress(sys.stderr if stream is None else stream, started_s=time.monotonic())
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        while not ended.wait(BAR_EVERY_S):
            progress.show(tasks_of(tracker), now_s=time.monotonic())

    watching = threading.Thread(target=watch, name="progress", daemon=True)
    watching.start()
    try:
        yield progress
    finally:
        ended.set()
        watching.join()
        progress.end()


def tasks_of(tracker: StatusTracker) -> Tasks:
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    live = [stage for stage in stages if stage is not None]
    return Tasks(sum(stage.numCompletedTasks for stage in live), sum(stage.numTasks for stage in live))
