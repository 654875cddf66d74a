"""Cells of the matrix, the cells of a run, and the criteria of each."""

from __future__ import annotations

import itertools

import pytest

from testing import ROOT
from testing.promises import matrix
from testing.promises.expectations import HANDOFF_MS, TABLE, Expected, differences, expected_of, table_lines
from testing.promises.judge import OFFENCES
from testing.promises.load import Generator, load_of, spread_keys
from testing.promises.matrix import CALLABLE, CHANNELS, KINDS, MOVES, TIMES_MS, Cell, times_of

EVERY = matrix.full()
DEFAULT = matrix.default()


def test_the_full_product_has_every_mode_engine_move_time_and_channel_but_what_is_left_out() -> None:
    without = matrix.left_out()
    product = itertools.product(KINDS, matrix.ENGINES, MOVES, TIMES_MS, CHANNELS)
    expected = {
        Cell(*values) for values in product if values[:3] not in without and values[3] in times_of(values[0])
    }
    assert set(EVERY) == expected
    assert len(EVERY) == len(expected)


def test_only_what_rabbitmq_refuses_and_what_has_no_partitions_is_left_out() -> None:
    assert set(matrix.left_out()) == {
        *itertools.product(("MessageGroups", "Sessions"), ("rabbitmq",), MOVES),
        ("MessageGroups", "embedded", "repartition"),
        ("Sessions", "embedded", "repartition"),
    }
    assert all(matrix.left_out().values())


def test_a_run_has_every_cell_of_the_callable() -> None:
    assert {cell for cell in EVERY if cell.channel == CALLABLE} <= set(DEFAULT)


def test_a_run_has_every_pair_of_values_of_the_other_channels() -> None:
    others = [cell for cell in EVERY if cell.channel != CALLABLE]
    taken = [cell for cell in DEFAULT if cell.channel != CALLABLE]
    pairs = {pair for cell in others for pair in matrix.pairs_of(cell)}
    assert {pair for cell in taken for pair in matrix.pairs_of(cell)} == pairs
    assert len(taken) < len(others) / 8


def test_a_run_has_each_cell_once_and_always_the_same() -> None:
    assert len(set(DEFAULT)) == len(DEFAULT)
    assert matrix.default() == DEFAULT


@pytest.mark.parametrize("cell", [DEFAULT[0], DEFAULT[-1]], ids=["first", "last"])
def test_a_cell_is_read_from_its_text(cell: Cell) -> None:
    assert Cell.parse(str(cell)) == cell


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Exclusive/embedded", "is not mode/engine/move/time/channel"),
        ("exclusive/embedded/join/50/callable", "mode 'exclusive'"),
        ("Exclusive/kafka/join/50/callable", "engine 'kafka'"),
        ("Exclusive/embedded/join/51/callable", "time '51'"),
        ("ByLoad/embedded/join/0/callable", "time '0'"),
        ("Sessions/rabbitmq/join/50/callable", "no queue of RabbitMQ numbers its messages"),
        ("Sessions/embedded/repartition/50/callable", "no number of queues"),
    ],
)
def test_a_text_that_is_no_cell_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Cell.parse(text)


def test_every_cell_must_show_something_and_only_calls_longer_than_the_handoff_time_may_be_cut_off() -> None:
    for cell in EVERY:
        expected = expected_of(cell)
        for name in ("lost", "repeated", "inverted", "overlapped", "strange"):
            assert expected.most[name] == 0
        if expected.cut_off:
            assert cell.time_ms >= HANDOFF_MS
            assert expected.why


def test_every_line_of_the_table_is_for_some_cell() -> None:
    used = {next(number for number, line in enumerate(TABLE) if line.fits(cell)) for cell in EVERY}
    assert used == set(range(len(TABLE)))


@pytest.mark.parametrize("offence", OFFENCES)
def test_one_offence_more_than_expected_is_a_difference(offence: str) -> None:
    assert differences(Expected(), dict.fromkeys(OFFENCES, 0)) == []
    assert differences(Expected(), {offence: 1}) == [f"1 {offence.replace('_', ' ')}, expected none"]


def test_what_may_be_cut_off_may_not_be_more() -> None:
    assert differences(Expected(cut_off=2), {"cut_off": 2}) == []
    assert differences(Expected(cut_off=2), {"cut_off": 3}) == ["3 cut off, expected 2"]


def test_a_move_that_takes_longer_than_it_may_is_a_difference() -> None:
    assert differences(Expected(within_s=20.0), {}, moved_s=20.0) == []
    (told,) = differences(Expected(within_s=20.0), {}, moved_s=20.1)
    assert told == "the move took 20.1 s, expected 20 s at most"


def test_a_move_that_does_not_complete_is_a_difference() -> None:
    assert differences(Expected(), {}, problems=("joiner.0 had no call",)) == ["joiner.0 had no call"]


@pytest.mark.parametrize(
    ("mode", "time_ms"), [(mode, time_ms) for mode in KINDS for time_ms in times_of(mode)]
)
def test_the_load_of_a_cell_is_numbered_in_order_and_has_every_key(mode: str, time_ms: int) -> None:
    load = load_of(Cell(mode, "embedded", "join", time_ms, CALLABLE))
    generator = Generator(load)
    rows = generator.backlog() + generator.rows(40)
    assert rows.count(b"\n") == len(generator.sent) > 40
    assert list(generator.sent) == list(range(len(generator.sent)))
    assert set(generator.sent.values()) == set(spread_keys(16))


def test_keys_are_spread_over_the_queues() -> None:
    keys = spread_keys(16)
    assert len(set(keys)) == 16
    assert spread_keys(8) == keys[:8]


def test_the_page_has_the_table() -> None:
    page = ROOT / "docs/internals/promises.md"
    assert "\n".join(table_lines()) in page.read_text()
