"""A program that a test has as text: `python -m testing.program TEXT ARGUMENT…` runs it as `python -c` does.

`fork_server` forks it, with what it imports.
"""

from __future__ import annotations

import sys


def command(text: str, *arguments: str) -> list[str]:
    """The command that runs this text; from the root of the repository."""
    return [sys.executable, "-m", "testing.program", text, *arguments]


if __name__ == "__main__":
    exec(compile(sys.argv.pop(1), "<program>", "exec", dont_inherit=True), {"__name__": "__main__"})
