"""Patterns of names that come from outside: permissions, policies, filters of lists.

Python's `re` and PCRE try alternatives one after the other: "(a+)+$" on a name of 30 letters takes minutes, and who may
list queues, set a permission or a policy would stop the process for so long. RE2 matches in a time that is linear in
the name. It has no look-around and no back references; look-aheads at the beginning, by which RabbitMQ's guides exclude
names ("^(?!amq\\.).*"), are separate patterns here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import re2

PATTERN_MAX_CHARS: Final = 64 * 1024
_PROGRAM_MAX_BYTES: Final = 1 << 20
"""Of a compiled pattern with its cache. With 1 MiB the worst patterns that compile take 0.2 ms for a name of 255
characters; RE2's own 8 MiB let classes of Unicode in that take 190 ms to compile."""


class PatternError(ValueError):
    """A text that is no pattern; the message quotes its beginning and gives the reason."""


class NamePattern:
    """One compiled pattern, which matches anywhere in a name unless it is anchored. Raises PatternError."""

    __slots__ = ("_checks",)

    def __init__(self, pattern: str) -> None:
        if len(pattern) > PATTERN_MAX_CHARS:
            raise PatternError(f"{pattern[:80]!r}… has more than {PATTERN_MAX_CHARS} characters")
        excluded, rest = exclusions(pattern)
        aheads, rest = _look_aheads(rest)
        try:
            self._checks: tuple[tuple[bool, Callable[[bytes], object]], ...] = (
                *((False, _compiled(f"^{name}$").search) for name in excluded),
                *((is_wanted, _compiled(ahead).match) for is_wanted, ahead in aheads),
                (True, _compiled(rest).search),
            )
        except (re2.error, UnicodeEncodeError) as error:
            raise PatternError(f"{pattern[:80]!r} is not a pattern: {_reason(error)}") from None

    def matches(self, name: str) -> bool:
        encoded = name.encode("utf-8", "surrogatepass")  # what came over the wire need not be UTF-8
        return all((search(encoded) is not None) is is_wanted for is_wanted, search in self._checks)


def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _PROGRAM_MAX_BYTES
    return re2.compile(pattern.encode(), options)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "it is not Unicode text"
    (text,) = error.args
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    if text.startswith(("invalid perl operator", "invalid escape sequence")):
        text += " (look-around and back references are not supported; see RE2's syntax)"
    return text[:200]


# What `without` in admin/ingress_permissions.py makes of a pattern, so that it does not match one exchange.

_EXCLUSION = re.compile(r"\^\(\?!((?:\\.|[A-Za-z0-9_-])+)\$\)\(\?=\[\\s\\S\]\*\?\(\?:")
_EXCLUSION_END: Final = "))"


def exclusions(pattern: str) -> tuple[list[str], str]:
    """Escaped names that were excluded from a pattern, and the pattern from which they were."""
    excluded = []
    start, end = 0, len(pattern)
    while (head := _EXCLUSION.match(pattern, start)) and pattern.endswith(_EXCLUSION_END, head.end(), end):
        excluded.append(head[1])
        start, end = head.end(), end - len(_EXCLUSION_END)
    return excluded, pattern[start:end]


def excluding(name: str, pattern: str) -> str:
    """`pattern` for all names but one, which is escaped; in the syntax of PCRE."""
    return rf"^(?!{name}$)(?=[\s\S]*?(?:{pattern}{_EXCLUSION_END}"


_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|.", re.DOTALL)
_AHEAD: Final = ("(?!", "(?=")


def _look_aheads(pattern: str) -> tuple[list[tuple[bool, str]], str]:
    """Look-aheads at the beginning of an anchored pattern, each with whether it has to match, and the anchored rest.

    None, and the pattern as it is, where it does not begin so or has alternatives, the first of which they belong to.
    """
    aheads: list[tuple[bool, str]] = []
    depth, position, begun = 0, 1, 1
    rest: int | None = None
    if not pattern.startswith(_AHEAD, 1) or pattern[0] != "^":
        return [], pattern
    while (token := _TOKEN.match(pattern, position)) is not None:
        if token[0] in ("\\Q", "["):  # a class without end; a quotation, in which brackets are letters
            return [], pattern
        if depth == 0 and rest is None and not pattern.startswith(_AHEAD, position):
            rest = position
        depth += (token[0] == "(") - (token[0] == ")")
        position = token.end()
        if depth == 0 and rest is None:
            aheads.append((pattern[begun + 2] == "=", pattern[begun + 3 : token.start()]))
            begun = position
        elif depth == 0 and token[0] == "|":
            return [], pattern
    remaining = "" if rest is None else pattern[rest:]
    if depth != 0 or remaining.startswith(("*", "+", "?", "{")):
        return [], pattern
    return aheads, f"^{remaining}"
