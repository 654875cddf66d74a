"""Passwords in addresses: where they are in a text, and texts and environments without them.

A password that should have been percent-encoded is found too: it may contain every character, and ends at the last
`@` of its address. So what follows the host of an address with a password may be taken for a part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

SHOWN: Final = "***"

_USER = re.compile(r"[^\s:/@\"]*")
# An address ends at white space, or at the comma before the next address.
_END = re.compile(r"\s|,(?=[a-z]+://)")


def password_spans(text: str) -> Iterator[tuple[int, int]]:
    """Begin and end of each password in an address, `SCHEME://USER:PASSWORD@…`."""
    at = 0
    while (found := text.find("://", at)) >= 0:
        at = found + len("://")
        user = _USER.match(text, at)
        assert user is not None  # it may be empty
        begin = user.end() + 1
        if text[user.end() : begin] != ":":
            continue
        over = _END.search(text, begin)
        limit = over.start() if over is not None else len(text)
        end = text.rfind("@", begin, limit)
        if end >= 0:
            yield begin, end
            at = end


def redacted(text: str) -> str:
    """`text` with the password of every address in it replaced by `***`."""
    parts = []
    at = 0
    for begin, end in password_spans(text):
        parts += [text[at:begin], SHOWN]
        at = end
    return "".join((*parts, text[at:]))


def without_passwords(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without our variables that hold a password, or an address with one."""
    return {name: value for name, value in environment.items() if not _holds_password(name, value)}


def _holds_password(name: str, value: str) -> bool:
    if not name.startswith("LBG_"):
        return False
    return name.endswith("_PASSWORD") or any(password_spans(re.sub(r"\s", "_", value)))
