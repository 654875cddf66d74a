"""A disk of a few kilobytes for one process: a tmpfs in a mount namespace of its own, which ends with it.

It needs no root, only user namespaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_MOUNT = 'mount -t tmpfs -o size="$0" lbg-small-disk "$1" && shift && exec "$@"'


def on_small_disk(folder: Path, size_kb: int) -> Sequence[str]:
    """What to put before a command, which then finds an empty disk at `folder`, and has the process id of its own."""
    return (
        *("unshare", "--user", "--map-root-user", "--mount"),
        *("sh", "-c", _MOUNT, f"{size_kb}k", str(folder)),
    )


def seen_by(pid: int, path: Path) -> Path:
    """The same file as the process sees it."""
    return Path(f"/proc/{pid}/root{path}")
