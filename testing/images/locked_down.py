"""A process as a container runs it under Kubernetes' "restricted" profile with a read-only root: not as root, without
privileges, and with nothing to write to but the folders named.

It needs no root, only user namespaces, and unshare(1) of util-linux 2.38 or newer. In a first namespace the file
systems are made read-only; in a second one, which has no power over the first, the process is user 65532.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

UID = 65532

_LOCK = f"""
set -e
for folder in $WRITABLE; do mount --bind "$folder" "$folder"; done
findmnt --raw --noheadings --output TARGET | while read -r place; do
    case " $WRITABLE /proc /sys /dev " in *" $place "*) continue ;; esac
    case "$place" in /dev/shm) ;; /proc/*|/sys/*|/dev/*) continue ;; esac
    mount --options remount,bind,ro "$place"
done
exec unshare --user --map-user={UID} --map-group={UID} setpriv --no-new-privs "$@"
"""


def locked_down(command: Sequence[str | Path], *, writable: Sequence[Path] = ()) -> list[str]:
    """`command`, with everything read-only but the folders of `writable`."""
    folders = " ".join(map(str, writable))
    lock = ("sh", "-c", f"WRITABLE='{folders}'\n{_LOCK}", "sh")
    return ["unshare", "--user", "--map-root-user", "--mount", *lock, *map(str, command)]
