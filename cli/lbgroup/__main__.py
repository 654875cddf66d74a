"""Entry point of `lbg`: hides passwords of the command line before anything else is imported.

Linux shows every user the arguments of a process, as `ps` does, and reads them from the memory of the process
(proc(5), /proc/PID/cmdline). So a password in an address is overwritten there. It is visible until then, for some
hundredths of a second: docs/security.md names the options that are never visible.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from lbg_core.redaction import password_spans

_ARGUMENTS_BEGIN, _ARGUMENTS_END = 48, 49
"""Fields of /proc/PID/stat, counted from 1: `arg_start` and `arg_end` in proc(5)."""
_FIRST_AFTER_NAME = 3
"""The second field is the name of the program, in parentheses, and may have spaces in it."""


def hide_passwords(arguments: bytes) -> bytes:
    """`arguments`, with NUL between them, where each character of a password in an address is a star."""
    hidden = bytearray(arguments)
    at = 0
    for argument in arguments.split(b"\0"):
        # A password on a command line may have spaces in it: an argument is one word.
        text = re.sub(r"\s", "_", argument.decode("latin-1"))
        for begin, end in password_spans(text):
            hidden[at + begin : at + end] = b"*" * (end - begin)
        at += len(argument) + 1
    return bytes(hidden)


def hide_own_passwords() -> None:
    """Hides the passwords of this process; where the system has no such memory, it does nothing."""
    try:
        shown = Path("/proc/self/cmdline").read_bytes()
        hidden = hide_passwords(shown)
        if hidden == shown:
            return
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = (int(fields[at - _FIRST_AFTER_NAME]) for at in (_ARGUMENTS_BEGIN, _ARGUMENTS_END))
    except (OSError, ValueError, IndexError):
        return
    if not begin or end - begin != len(shown):
        return
    import ctypes  # only who has a password there needs it

    ctypes.memmove(begin, hidden, len(hidden))


def main() -> int:
    """The exit status is 0, 1 for a failure and 2 for a wrong command line."""
    hide_own_passwords()
    from lbgroup.cli import cli
    from lbgroup.commands import run

    return run(cli)


if __name__ == "__main__":
    sys.exit(main())
