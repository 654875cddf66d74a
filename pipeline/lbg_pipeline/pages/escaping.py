"""Text from data, made fit for a page: it stays text, whatever is in it."""

from __future__ import annotations

import html

LONGEST = 60
"""Characters of a name that are shown; of a longer one the middle is left out."""


def shown(text: str, longest: int = LONGEST) -> str:
    """The text as a person can read it: on one line, nothing invisible, not too long.

    What does not print is written as an escape: a control character would end the page for some readers, an override
    of direction would turn the text around it, and half a surrogate pair cannot be written as UTF-8.
    """
    visible = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    if len(visible) <= longest:
        return visible
    front = (longest - 1) // 2
    return f"{visible[:front]}…{visible[-(longest - 1 - front) :]}"


def escaped(text: str, longest: int | None = None) -> str:
    """HTML for the text, between tags or inside a quoted attribute."""
    return html.escape(shown(text, len(text) * 10 if longest is None else longest), quote=True)
