"""Append-only record files: written by publishers and members, read when they are closed.

`docs/journal.md` describes the records (`lbg_broker.group.journal`) and the files. No asyncio but in
`flushing`.
"""

from .errors import DirectoryUnusable, JournalingError, UnreadableRecord, WriteFailed
from .flushing import flush_regularly
from .reader import JournalReader, closed_files
from .writer import JournalSettings, JournalWriter

__all__ = [
    "DirectoryUnusable",
    "JournalReader",
    "JournalSettings",
    "JournalWriter",
    "JournalingError",
    "UnreadableRecord",
    "WriteFailed",
    "closed_files",
    "flush_regularly",
]
