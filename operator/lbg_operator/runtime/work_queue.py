"""Work queue: one reconcile at a time for each object, none waiting for another's."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from lbg_core.client.backoff import doubled_s
from lbg_operator.kube.api import CONFLICT, ClusterError
from lbg_operator.reconcile.object_cache import Key

log = logging.getLogger("lbg.operator")

FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 60.0
LEAST_RETRY_S = 5.0
"""No event shortens the wait after a failure to less: what a reconcile writes before it fails is an event too."""
BATCH_S = 0.05
"""Events of one cause come in swarms (a Deployment's status, its pods): one reconcile for all."""

Reconcile = Callable[[Key], Awaitable[float | None]]
"""Returns in how many seconds the next is due, None: it is over with this object. 0 asks for a retry with backoff."""
Done = Callable[[str, float], None]
"""Called after each reconcile with `ok`, `retry` or `error`, and its seconds."""


@dataclass(slots=True)
class _Worker:
    """Between two reconciles there is a timer and no task, which is ten times as large: most of many groups rest."""

    is_woken: bool = False
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    failures: int = 0
    began: float | None = None


class WorkQueue:
    def __init__(
        self, reconcile: Reconcile, *, name: str, done: Done = lambda outcome, seconds: None
    ) -> None:
        self._reconcile = reconcile
        self._name = name
        self._done = done
        self._work_queue: dict[Key, _Worker] = {}
        self._is_closing = False

    def wake(self, key: Key) -> None:
        """Reconcile soon, and once more if a reconcile is running."""
        if self._is_closing:
            return
        worker = self._work_queue.setdefault(key, _Worker())
        worker.is_woken = True
        self._begin(key, worker)

    @property
    def longest_reconcile_s(self) -> float:
        """Seconds that the longest running reconcile has taken by now."""
        now = time.monotonic()
        return max(
            (now - one.began for one in self._work_queue.values() if one.began is not None), default=0.0
        )

    async def close(self) -> None:
        """Running reconciles are cancelled: each can be repeated from its beginning."""
        self._is_closing = True
        for worker in self._work_queue.values():
            if worker.timer is not None:
                worker.timer.cancel()
        tasks = [one.task for one in self._work_queue.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, key: Key, worker: _Worker) -> None:
        if worker.timer is not None:
            worker.timer.cancel()
            worker.timer = None
        if worker.task is None:
            worker.task = asyncio.create_task(self._run(key, worker), name=f"{self._name} {key}")

    async def _run(self, key: Key, worker: _Worker) -> None:
        """Reconciles until there is nothing to do for a while."""
        while True:
            await asyncio.sleep(BATCH_S)
            worker.is_woken = False
            wait_s, outcome = await self._timed_reconcile(key, worker)
            worker.failures = 0 if outcome == "ok" else worker.failures + 1
            if wait_s is None:
                if worker.is_woken:
                    continue
                del self._work_queue[key]
                return
            least_s = 0.0
            if worker.failures:
                wait_s = doubled_s(FIRST_RETRY_S, LONGEST_RETRY_S, worker.failures - 1)
                least_s = min(wait_s, LEAST_RETRY_S)
                await asyncio.sleep(least_s)
            if worker.is_woken:
                continue
            worker.task = None
            loop = asyncio.get_running_loop()
            worker.timer = loop.call_later(max(wait_s - least_s, 0.0), self._begin, key, worker)
            return

    async def _timed_reconcile(self, key: Key, worker: _Worker) -> tuple[float | None, str]:
        worker.began = time.monotonic()
        outcome, wait_s = "ok", None
        try:
            wait_s = await self._reconcile(key)
            if wait_s is not None and wait_s <= 0:
                outcome = "retry"
        except ClusterError as error:
            level = logging.DEBUG if error.status == CONFLICT else logging.WARNING
            log.log(level, "%s %s: %s; trying again", self._name, key, error)
            outcome, wait_s = "retry", 0.0
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.exception(
                "%s %s: the reconciliation waited for something that was cancelled", self._name, key
            )
            outcome, wait_s = "error", 0.0
        except Exception:  # a bug of ours must not end the work on this object, nor on the others
            log.exception("%s %s: the reconciliation failed; trying again", self._name, key)
            outcome, wait_s = "error", 0.0
        finally:
            self._done(outcome, time.monotonic() - worker.began)
            worker.began = None
        return wait_s, outcome
