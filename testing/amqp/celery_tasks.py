"""A Celery application as users write them, for the tests of tests/clients: nothing is set that has a default.

The broker is in CELERY_BROKER_URL, which Celery itself reads; results come back over it (rpc).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from celery import Celery

from testing.waiting import GUARD_S

app = Celery("celery_tasks", backend="rpc://")
app.conf.broker_connection_retry_on_startup = True
app.conf.task_default_queue_type = os.environ.get("QUEUE_TYPE", "classic")


@app.task(name="add")
def add(one: int, two: int) -> int:
    return one + two


@app.task(name="third_time", bind=True, max_retries=3)
def third_time(self: Any) -> int:
    """Succeeds when it is tried for the third time."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


def main() -> None:
    """Have argv[2] workers carry out so many tasks as argv[1] says, and print what came of it as JSON."""
    tasks, workers = map(int, sys.argv[1:])
    results = [add.delay(number, number) for number in range(tasks)]
    found = {
        "sums": [result.get(timeout=GUARD_S) for result in results],
        "retries": third_time.delay().get(timeout=GUARD_S),
        "workers": sorted(
            name for answer in app.control.ping(timeout=GUARD_S, limit=workers) for name in answer
        ),
    }
    print(json.dumps(found))
