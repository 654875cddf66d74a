"""The broker's disk: messages and definitions in one SQLite file, written in batches by one thread.

Nothing here knows AMQP: the core's batches (`core/effects.py`) come in, rows go out.
"""

from __future__ import annotations

from lbg_broker.store.errors import DirectoryLockedError, DiskFullError, NewerStoreError, StoreError
from lbg_broker.store.store import Committer, Store

__all__ = ["Committer", "DirectoryLockedError", "DiskFullError", "NewerStoreError", "Store", "StoreError"]
