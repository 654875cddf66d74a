"""What this member processed, in a file that outlives its process: a repeat after kill -9 costs no call.

A file of the process's place: a pod that starts elsewhere without the volume knows nothing. What is forgotten,
damaged or never written lets a repeat through, and never calls processed what was not.
"""

from .errors import CommitsError
from .log import CommitLog
from .position import PositionFile

__all__ = ["CommitLog", "CommitsError", "PositionFile"]
