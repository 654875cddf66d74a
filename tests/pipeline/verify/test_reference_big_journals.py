"""The journals that engines are measured with: what is said to be in them is in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lbg_core.group import JournalError, decode
from lbg_core.journal import closed_files
from testing.pipeline import live
from testing.pipeline.answers import Answer
from testing.pipeline.journal_generator import generate
from testing.pipeline.reference import judge


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    directory = tmp_path_factory.mktemp("big") / "made"
    expected = generate(directory, 60_000, processes=1)
    return directory / "journal", expected


def number(publisher: str) -> int:
    return int(publisher.rpartition("-")[2])


@pytest.mark.long
def test_the_reference_finds_what_the_generator_planted(journal: tuple[Path, Answer]) -> None:
    records, broken = [], 0
    for file in closed_files(journal[0]):
        for line in file.read_bytes().splitlines():
            try:
                records.append(decode(line))
            except JournalError:
                broken += 1
    (found,) = judge(records).values()
    answer = Answer(
        published=found.published,
        delivered=found.delivered,
        broken_lines=broken,
        redelivered=found.redelivered,
        moves=len(found.moves),
        unpublished=found.total("unpublished"),
        lost=sorted((number(o.publisher), o.hash, n) for o in found.lost for n in range(o.first, o.last + 1)),
        offences=sorted((o.kind, o.view or "", (number(o.publisher), o.hash, o.seq)) for o in found.offences),
    )
    assert answer.differences(journal[1]) == []
    assert len({(kind, view) for kind, view, _ in answer.offences}) == 6


@pytest.mark.long
def test_the_live_validator_finds_its_part_of_it(journal: tuple[Path, Answer]) -> None:
    assert live.judged(journal[0]).differences(live.asked_of(journal[1])) == []


def test_a_difference_names_the_messages() -> None:
    one = Answer(lost=[(0, 1, 2)])
    assert one.differences(replace(one, lost=[(0, 1, 3)], moves=4)) == [
        "moves: 0 and 4",
        "lost: 1 and 1, only here [(0, 1, 2)], only there [(0, 1, 3)]",
    ]
