"""Journals: the edge at which lines become rows.

parse     lines -> Arrow batches of published, delivered and broken; pure
scan      paths -> DataFrames: the share of each task, whole lines, some megabytes at a time
cached    journals that are parsed once for several questions
"""

from __future__ import annotations

from lbg_pipeline.journal.parse import Parsed
from lbg_pipeline.journal.scan import Journals, read_journals, scan_journals

__all__ = ["Journals", "Parsed", "read_journals", "scan_journals"]
