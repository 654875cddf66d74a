"""RabbitMQ of tests and benchmarks: this machine's, or the one in LBG_RABBITMQ_ROOT.

LBG_RABBITMQ_ROOT names a folder with a whole Debian system in it, as `.ci/rabbitmq4` makes one. Its programs run with
that folder as their root directory, in a mount namespace of their own, so that nothing outlives them. They see `/tmp`
and the node's directory where everybody else sees them.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_ENTER = """
set -eu
root=$1
until [ "$2" = -- ]; do
    mkdir -p "$root$2"
    mount --rbind "$2" "$root$2"
    shift
done
shift 2
exec chroot "$root" "$@"
"""


class NodeFailedError(RuntimeError):
    """The node is not installed, did not come up or did not do as told; the message ends with its last words."""


@dataclass(frozen=True, slots=True)
class Installation:
    """RabbitMQ and Erlang under `root`; Debian's `rabbitmq-server` package without its service or configuration."""

    root: Path

    @classmethod
    def of_environment(cls) -> Self:
        return cls(Path(os.environ.get("LBG_RABBITMQ_ROOT") or "/").resolve())

    @property
    def version(self) -> tuple[int, int, int]:
        """Of RabbitMQ, such as (3, 10, 8). Raises `NodeFailedError`."""
        for folder in (self.root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"):
            major, minor, patch = folder.name.removeprefix("rabbitmq_server-").split(".")
            return int(major), int(minor), int(patch)
        raise NodeFailedError(f"there is no RabbitMQ under {self.root}: run `make dev`, or .ci/rabbitmq4")

    def script(self, name: str, *arguments: str, see: Path) -> list[str]:
        """The command line that runs one of RabbitMQ's scripts, which reads and writes below `see`."""
        return self.command(f"{self._server}/sbin/{name}", *arguments, see=see)

    @property
    def plugins(self) -> str:
        """The directory of its plugins."""
        return f"{self._server}/plugins"

    @property
    def _server(self) -> str:
        return f"/usr/lib/rabbitmq/lib/rabbitmq_server-{'.'.join(map(str, self.version))}"

    def command(self, *command: str, see: Path | None = None) -> list[str]:
        """The command line that runs a program of the installation. Every step is an exec: the process id stays."""
        # A test run that is killed must not leave nodes behind.
        with_parent = ["setpriv", "--pdeathsig", "KILL"]
        if self.root == Path("/"):
            return [*with_parent, *command]
        temporary = Path(tempfile.gettempdir())
        seen = [Path("/proc"), Path("/dev"), temporary]
        if see is not None and not see.is_relative_to(temporary):
            seen.append(see)
        enter = ["unshare", "--mount", "sh", "-c", _ENTER, "sh", str(self.root), *map(str, seen), "--"]
        return [*with_parent, *enter, *command]
