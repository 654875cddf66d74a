"""Rows of an input as messages to be, and what of a row is what."""

from __future__ import annotations

from dataclasses import dataclass

FORMATS = ("csv", "tsv", "jsonl")

# R, and the data sets made with it, write a missing value as NA.
NO_KEY_VALUES = frozenset({"", "NA"})


@dataclass(frozen=True, slots=True)
class Row:
    """One message to be. `number` counts the rows from 1, a header not included; `line` is where it ends."""

    number: int
    line: int
    key: str | None
    topic: str
    body: bytes


@dataclass(frozen=True, slots=True)
class RowOptions:
    """What of a row is what.

    `key_field`: the field that holds the key; None: no message has one. In JSON, `a.b` is field b of object
        a, unless there is a field called `a.b`.
    `topic`: the topic of every message, unless `topic_field` names the field that holds it.
    `no_key`: key values that mean that there is no key.
    `format`: csv, tsv or jsonl; None: by the file's name, else by its first character.
    """

    key_field: str | None = None
    topic: str = ""
    topic_field: str | None = None
    no_key: frozenset[str] = NO_KEY_VALUES
    format: str | None = None


def listed(names: list[str], *, limit: int = 40) -> str:
    """Field names for an error line."""
    return ", ".join(names[:limit]) + (f", … ({len(names)} in all)" if len(names) > limit else "")
