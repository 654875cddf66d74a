"""Frozen words and how they compare with the product's: every word is listed under a family and a subject."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests" / "docs" / "frozen_words.toml"
REFRESH = "PYTHONPATH=tests .venv/bin/python -m testing.frozen_words"

Words = dict[str, set[str]]
"""By subject: a command, a table, an object."""


def differences(family: str, frozen: Words, found: Words) -> tuple[list[str], list[str]]:
    """A line for each word that is gone, and a line for each word that is new. A change is one of both."""
    return listed(f"REMOVED {family}", frozen, found), listed(f"added {family}", found, frozen)


def listed(head: str, words: Words, others: Words) -> list[str]:
    """A line for each of `words` that `others` lacks, with the first subjects that have it."""
    subjects: dict[str, list[str]] = {}
    for subject in words:
        for word in words[subject] - others.get(subject, set()):
            subjects.setdefault(word, []).append(subject)
    return [
        f"{head}: {', '.join(places[:2])}{f' and {len(places) - 2} more' if places[2:] else ''}: {word}"
        for word, places in sorted(subjects.items())
    ]


def failure(family: str, frozen: Words, found: Words) -> str:
    """Failure of a test; empty if nothing differs."""
    gone, added = differences(family, frozen, found)
    if gone:
        gone.append("Users and stored data depend on these words: restore them.")
    if added:
        added.append(f"If the additions are meant, freeze them: {REFRESH} '{family}'")
    return "\n".join(gone + added)


def read_frozen() -> dict[str, Words]:
    found = tomllib.loads(FILE.read_text())
    return {
        family: {subject: set(words) for subject, words in subjects.items()}
        for family, subjects in found.items()
    }


def written(families: Mapping[str, Words]) -> str:
    lines = [
        "# Words that users, stored data and other versions of LBG depend on. Additions: see support.frozen_words."
    ]
    for family, subjects in sorted(families.items()):
        lines += ["", f"[{json.dumps(family)}]"]
        for subject, words in sorted(subjects.items()):
            lines.append(f"{json.dumps(subject)} = [")
            lines += [f"    {json.dumps(word, ensure_ascii=False)}," for word in sorted(words)]
            lines.append("]")
    return "\n".join(lines) + "\n"
