"""The thread that writes: one batch at a time, the next gathers meanwhile."""

import queue
import threading
from collections.abc import Callable

from lbg_broker.server.core.changes import Page, StoreBatch
from lbg_broker.server.store.errors import StoreError
from lbg_broker.server.store.store import Store

__all__ = ["Committer", "Outcome"]

Outcome = list[Page] | StoreError
"""The pages a batch asked for, or why it is not on disk."""


class Committer:
    """Gives batches to the store in order and calls back, on its own thread, when each is on disk or failed."""

    def __init__(self, store: Store, on_done: Callable[[StoreBatch, Outcome], None]) -> None:
        self._store = store
        self._on_done = on_done
        self._batches: queue.SimpleQueue[StoreBatch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="lbg-store", daemon=True)
        self._thread.start()

    def submit(self, batch: StoreBatch) -> None:
        """Have a batch written after those submitted before."""
        self._batches.put(batch)

    def stop(self) -> None:
        """Write what was submitted, then end the thread and close the store."""
        self._batches.put(None)
        self._thread.join()
        self._store.close()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                outcome: Outcome = self._store.carry_out(batch)
            except StoreError as error:
                outcome = error
            except Exception as error:  # a mistake of ours must not leave everybody waiting for ever
                outcome = StoreError(f"the batch could not be carried out: {error!r}")
            self._on_done(batch, outcome)

    def _next(self) -> StoreBatch | None:
        """The next batch; while there is none, the store tidies up."""
        while self._store.untidy:
            try:
                return self._batches.get_nowait()
            except queue.Empty:
                try:
                    self._store.tidy()
                except StoreError:  # a batch that meets the same trouble will tell
                    break
        return self._batches.get()
