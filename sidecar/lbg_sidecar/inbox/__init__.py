"""An inbox for applications: each message's effects happen once, in the application's own database.

The message's identity (publisher, hash, sequence) is recorded in the transaction of the application's own writes.
A message that was processed before, on any pod, is detected there: that alone makes it exact.
`compact` folds rows into a floor per stream; `processed` gives positions in the form of `lbg_sidecar.app.channel`,
which saves the member calls and is never needed for correctness.
"""

from __future__ import annotations

from lbg_sidecar.inbox.batches import BatchingInbox
from lbg_sidecar.inbox.identity import Identified, InboxError, NoIdentity
from lbg_sidecar.inbox.sqlite import SQLiteInbox

__all__ = ["BatchingInbox", "Identified", "InboxError", "NoIdentity", "SQLiteInbox"]
