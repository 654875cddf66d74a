"""The command line of a measurement, and of the workers that it starts (`bench.workers`)."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NoReturn


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank: of 100 values the 99th is that of 0.99. Not a number where there are none."""
    return sorted(values)[max(math.ceil(len(values) * share), 1) - 1] if values else math.nan


Workers = Mapping[str, Callable[..., Coroutine[Any, Any, object]]]


class Measurement(argparse.ArgumentParser):
    """Described by the first line of `doc`. With `workers`, by role, `--worker JSON` runs one of them in its place."""

    def __init__(self, doc: str | None, *, workers: Workers | None = None) -> None:
        assert doc is not None
        super().__init__(description=doc.splitlines()[0])
        self._workers = workers or {}
        if workers:
            self.add_argument("--worker", type=json.loads, metavar="JSON", help=argparse.SUPPRESS)

    def asked(self) -> argparse.Namespace:
        """Options of the measurement. A worker is run instead, and ends the process."""
        arguments = self.parse_args()
        if self._workers and arguments.worker:
            self._work(arguments.worker)
        return arguments

    def _work(self, told: dict[str, Any]) -> NoReturn:
        asyncio.run(self._workers[told.pop("role")](**told))
        sys.stdout.flush()
        os._exit(0)  # a thread may still wait for a line
