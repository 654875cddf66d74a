"""A small `make exactly-once` by sessions: every insert is made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.exactly_once import SessionSizes, SessionsRun
from testing.exactly_once.session_tables import connected, create
from testing.exactly_once.sessions import judged

SMALL = SessionSizes(messages=500, consumers=2, kills=4, broker_kills=1, linger_s=0.005, longest_pause_s=0.1)


@pytest.mark.process
async def test_a_position_that_is_committed_with_its_row_makes_each_message_a_row_once(
    tmp_path: Path,
) -> None:
    outcome = await SessionsRun(7, SMALL, tmp_path, with_file=False).play()
    assert outcome.holds, str(outcome)
    assert outcome.rows == SMALL.messages


@pytest.mark.slow
@pytest.mark.process
async def test_a_position_in_a_file_repeats_one_message_for_a_kill_at_most(tmp_path: Path) -> None:
    outcome = await SessionsRun(8, SMALL, tmp_path, with_file=True).play()
    assert outcome.holds, str(outcome)
    assert 0 < outcome.repeated <= SMALL.kills + SMALL.consumers, str(outcome)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([("a", 1, 0), ("a", 2, 1), ("b", 1, 1)], "1 in two sessions"),
        ([("a", 2, 1), ("a", 1, 0)], "1 out of their session's order"),
        ([("a", 1, 0)], "1 messages lost"),
        ([("a", 1, 0), ("a", 1, 0), ("b", 1, 1)], "1 rows too many"),
    ],
)
def test_the_judge_finds_what_is_wrong(rows: list[tuple[str, int, int]], what: str, tmp_path: Path) -> None:
    table = connected(str(tmp_path / "rows.db"))
    create(table)
    table.executemany("INSERT INTO inserted VALUES (?, ?, ?)", rows)
    outcome = judged(table, SessionSizes(messages=2, kills=0, broker_kills=0), with_file=False)
    table.close()
    assert not outcome.holds
    assert what in str(outcome)
