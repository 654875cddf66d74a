"""The directory of what a member commits, tried before anything is consumed: its file depends on the group's mode."""

from __future__ import annotations

import tempfile
from pathlib import Path

from .errors import CommitsError


def require_directory(path: Path) -> None:
    """Make it if it is missing. Raises CommitsError unless a file can be made there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise CommitsError(
            f"the commits directory {path} cannot be used: {error.strerror or error}; name another directory, or none"
        ) from error
