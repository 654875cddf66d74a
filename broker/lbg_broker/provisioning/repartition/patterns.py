"""Taking the right to publish to one exchange out of a permission's pattern, and giving it back: pure.

What is taken out stays readable in what remains, so that nothing has to be kept elsewhere, and whoever was killed in
between leaves all that its successor needs. RabbitMQ's patterns are PCRE, the embedded broker's Python's: both know
lookaheads, and both look for a match anywhere in the name ("Access Control").
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_HEAD = re.compile(r"\^\(\?!((?:\\.|[A-Za-z0-9_-])+)\$\)\(\?=\[\\s\\S\]\*\?\(\?:")
_TAIL = "))"


def without(pattern: str, exchange: str) -> str:
    """`pattern` for all names but `exchange`; one that does not allow that anyway, as it is."""
    if not allows(pattern, exchange):
        return pattern
    taken, rest = _parted(pattern)
    return _joined({**dict.fromkeys(taken), re.escape(exchange): None}, rest)


def restored(pattern: str, exchange: str) -> str:
    """The pattern that `without` was given; any other pattern as it is."""
    taken, rest = _parted(pattern)
    return _joined([one for one in taken if one != re.escape(exchange)], rest)


def is_without(pattern: str, exchange: str) -> bool:
    """Whether `without` took the exchange out of it."""
    return re.escape(exchange) in _parted(pattern)[0]


def allows(pattern: str, name: str) -> bool:
    """Whether a user with this pattern may. One that Python cannot read is taken to allow everything."""
    try:
        return re.search(pattern or "^$", name) is not None
    except re.error:
        return True


def _parted(pattern: str) -> tuple[list[str], str]:
    taken = []
    while (head := _HEAD.match(pattern)) is not None and pattern.endswith(_TAIL):
        taken.append(head[1])
        pattern = pattern[head.end() : -len(_TAIL)]
    return taken, pattern


def _joined(taken: Iterable[str], rest: str) -> str:
    for name in reversed(list(taken)):
        rest = rf"^(?!{name}$)(?=[\s\S]*?(?:{rest}{_TAIL}"
    return rest
