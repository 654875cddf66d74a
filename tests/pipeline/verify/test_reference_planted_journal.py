"""The reference finds what was planted, and nothing else; so must every transform."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbg_core.group import JournalError, decode
from lbg_core.journal import JournalReader, closed_files
from testing.journal.broken_lines import broken_lines, newer_line
from testing.journal.planted import SKEW_S, Planted, plant, plant_newer
from testing.journal.planted_faults import FAULTS
from testing.pipeline.reference import judge


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return plant(tmp_path_factory.mktemp("planted"))


def test_exactly_what_was_planted_is_found(planted: Planted) -> None:
    found = judge(planted.records)
    assert {group: one.verdict for group, one in found.items()} == planted.verdicts
    for group, one in found.items():
        told = [(each.kind, each.view, each.key, each.seq) for each in one.offences]
        assert sorted(told, key=str) == sorted(planted.offences[group], key=str)
        assert sorted(one.lost) == sorted(planted.lost[group])
        assert sorted(one.moves, key=str) == sorted(planted.moves[group], key=str)
        assert one.total("unpublished") == planted.unpublished[group]
        assert not [each for each in one.offences if each.uncertain]


def test_with_two_clocks_exactly_what_they_explain_is_uncertain(planted: Planted) -> None:
    for group, one in judge(planted.records, clock_skew_s=SKEW_S).items():
        uncertain = [(each.kind, each.view, each.key, each.seq) for each in one.offences if each.uncertain]
        assert sorted(uncertain, key=str) == sorted(planted.uncertain[group], key=str)


def test_every_kind_of_offence_and_loss_is_planted(planted: Planted) -> None:
    kinds = {(kind, view) for told in planted.offences.values() for kind, view, _, _ in told}
    assert kinds == {
        *((kind, view) for kind in ("rewound", "inverted") for view in ("delivered", "acknowledged")),
        ("misplaced", "delivered"),
        ("repeated", None),
        ("overlap", None),
    }
    assert len(planted.lost["faulty"]) == 5
    assert len(planted.moves["moving"]) > 5
    assert set(FAULTS) == {one.key for one in planted.records if one.group == "faulty"}


def test_files_hold_every_record_and_every_broken_line_and_nothing_else(planted: Planted) -> None:
    lines = [
        (file.name, line)
        for file in closed_files(planted.directory)
        for line in file.read_bytes().removesuffix(b"\n").split(b"\n")
    ]
    for each in planted.broken:
        lines.remove((each.file, each.line))
    found = [decode(line) for _, line in lines]
    assert sorted(found, key=str) == sorted(planted.records, key=str)
    assert {each.sort for each in planted.broken} == set(broken_lines())
    assert len(closed_files(planted.directory)) > 20


def test_without_broken_lines_the_journal_is_read_as_it_is(tmp_path: Path) -> None:
    planted = plant(tmp_path, broken=False)
    assert sorted(JournalReader(tmp_path), key=str) == sorted(planted.records, key=str)


def test_a_newer_record_is_planted_as_one(tmp_path: Path) -> None:
    plant(tmp_path, broken=False)
    assert newer_line() in plant_newer(tmp_path).read_bytes().splitlines()
    with pytest.raises(JournalError, match="is of version 2, and this LBG reads version 1"):
        decode(newer_line())
