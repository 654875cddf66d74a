"""Frozen words are those of the product (`testing.frozen_words`); tests/pipeline has the words that Spark writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.frozen_words.families import FAMILIES, PARQUET, difference
from testing.frozen_words.words import FILE, REFRESH, Words, failure, read_frozen, written


def test_every_family_is_frozen_and_none_is_empty() -> None:
    frozen = read_frozen()
    assert frozen.keys() == FAMILIES.keys()
    assert all(words for subjects in frozen.values() for words in subjects.values())


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != PARQUET])
def test_no_word_is_removed_or_changed(family: str, tmp_path: Path) -> None:
    message = difference(family, tmp_path)
    if message:
        pytest.fail(message, pytrace=False)


def test_a_removed_word_a_changed_word_and_an_added_word_have_a_line_each() -> None:
    frozen: Words = {"sidecar": {"LBG_A", "LBG_B"}, "operator": {"LBG_C"}}
    found: Words = {"sidecar": {"LBG_A", "LBG_NEW"}}
    assert failure("environment", frozen, found).splitlines() == [
        "REMOVED environment: sidecar: LBG_B",
        "REMOVED environment: operator: LBG_C",
        "Users and stored data depend on these words: restore them.",
        "added environment: sidecar: LBG_NEW",
        f"If the additions are meant, freeze them: {REFRESH} 'environment'",
    ]
    assert failure("environment", frozen, frozen) == ""


def test_the_file_is_read_as_it_was_written() -> None:
    frozen = read_frozen()
    assert written(frozen) == FILE.read_text()
