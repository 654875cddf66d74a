"""The broker's disk: messages and definitions in one SQLite file, written in batches by one thread.

Nothing here knows AMQP: the core's batches (`core/changes.py`) come in, rows go out.
"""

from lbg_broker.server.store.committing import Committer
from lbg_broker.server.store.errors import (
    DirectoryLockedError,
    DiskFullError,
    NewerStoreError,
    StoreError,
)
from lbg_broker.server.store.store import Store

__all__ = ["Committer", "DirectoryLockedError", "DiskFullError", "NewerStoreError", "Store", "StoreError"]
