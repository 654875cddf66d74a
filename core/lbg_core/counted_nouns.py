"""Numbers with their nouns in texts for people: 1 message, 2 messages. Pure."""

from __future__ import annotations


def counted(count: int, noun: str, nouns: str = "") -> str:
    """The number with `noun` for one, and else with `nouns`, by default `noun` and an s; a verb may follow in both."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"
