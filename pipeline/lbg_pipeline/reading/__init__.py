"""Reading journals: the edge at which lines become rows.

blocks    whole lines of a local file, some megabytes at a time
parsing   lines -> Arrow batches of published, delivered and broken; pure
splits    which worker reads what
journals  paths -> DataFrames
"""

from .journals import Journals, read_journals, scan_journals
from .parsing import Parsed

__all__ = ["Journals", "Parsed", "read_journals", "scan_journals"]
