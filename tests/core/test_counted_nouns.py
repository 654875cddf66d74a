"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from lbg_core.counted_nouns import counted


@pytest.mark.parametrize(
    ("count", "nouns", "text"),
    [
        (0, ("message",), "0 messages"),
        (1, ("message",), "1 message"),
        (2, ("message",), "2 messages"),
        (12_345, ("copy", "copies"), "12,345 copies"),
        (1, ("message waits", "messages wait"), "1 message waits"),
    ],
)
def test_one_has_the_singular_and_every_other_number_the_plural(
    count: int, nouns: tuple[str, ...], text: str
) -> None:
    assert counted(count, *nouns) == text
