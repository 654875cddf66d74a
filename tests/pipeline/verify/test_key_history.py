"""The history of a key from journals: one line for each message at each member, in the words of `lbg group key`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lbg_core.admin.key_lane import Gap, Moved, Published, Visit
from lbg_core.group import DeliveredRecord, PublishedRecord
from lbg_core.group.held_messages import Ending
from testing.journal.rows import START_US, delivered, published, write_lines

Record = PublishedRecord | DeliveredRecord


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global SparkSession, key_history, key_histories
    from pyspark.sql import SparkSession

    from lbg_pipeline.verify import key_history
    from lbg_pipeline.verify.key_history import key_histories


def given_back(one: DeliveredRecord, *, settled: bool) -> DeliveredRecord:
    """As the journal has what was given back; parked or forwarded if it was `settled`."""
    settled_us = one.settled_at_us if settled else None
    return replace(one, verdict="released", started_at_us=None, finished_at_us=None, settled_at_us=settled_us)


def life() -> list[Record]:
    """A fate for each message of the key. Number 4 is of another key, 5 and 6 are in no journal, 9 is not delivered."""
    keys = ["other" if seq == 4 else "k" for seq in range(10)]
    sent = [published(seq, at_us=seq * 10_000, key=keys[seq]) for seq in range(10)]
    came = [
        delivered(
            seq, at_us=one.published_at_us - START_US + 2000, published_at_us=one.published_at_us, key=one.key
        )
        for seq, one in enumerate(sent[:9])
    ]
    came[1] = given_back(came[1], settled=False)
    came[2] = given_back(came[2], settled=True)
    came[3] = given_back(came[3], settled=True)
    came[7] = replace(came[7], verdict="dead", attempts=3)
    came[8] = replace(came[8], settled_at_us=None)
    later = [
        delivered(1, at_us=13_000, member=1, redelivered=True, published_at_us=START_US + 10_000),
        delivered(3, at_us=33_000, member=1, queue=5, published_at_us=START_US + 30_000),
        delivered(8, at_us=85_000, member=1, redelivered=True, published_at_us=START_US + 80_000),
    ]
    present = [one for one in (*sent, *came) if one.seq not in (5, 6)]
    return [*present, *later, published(0, group="elsewhere"), published(50, key=None)]


def test_each_message_has_its_fate(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", life())
    [history] = key_histories(spark, [str(tmp_path)], "k", ["g"])
    assert [(one.seq, one.member, one.word) for one in history.lane.steps if isinstance(one, Visit)] == [
        (0, "m0", Ending.FINISHED),
        (1, "m0", Ending.RELEASED),
        (1, "m1", Ending.FINISHED),
        (2, "m0", Ending.PARKED),
        (3, "m0", Ending.FORWARDED),
        (3, "m1", Ending.FINISHED),
        (7, "m0", Ending.DEAD),
        (8, "m0", Ending.UNACKNOWLEDGED),
        (8, "m1", Ending.FINISHED),
        (9, None, Published.UNDELIVERED),
    ]
    assert [(one.first, one.last) for one in history.lane.steps if isinstance(one, Gap)] == [(5, 6)]
    moves = [(one.former, one.member) for one in history.lane.steps if isinstance(one, Moved)]
    assert moves == [*[("m0", "m1"), ("m1", "m0")] * 2, ("m0", "m1")]
    assert (history.hashes, history.queues) == ((0,), (0, 5))


def test_the_lines_are_those_of_the_fate_of_a_key(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", life())
    (tmp_path / "b.jsonl").write_bytes((tmp_path / "a.jsonl").read_bytes())
    first, other = key_histories(spark, [str(tmp_path)], "k")
    assert (first.group, [one.word for one in first.lane.steps]) == ("elsewhere", [Published.UNDELIVERED])
    assert list(other.lines()) == [
        "key k of group g: hash 0, queue 0, 5; until 2023-11-14, times in UTC",
        "publisher p",
        "TIME          SEQ  PUBLISHED     QUEUE  MEMBER  WAITED  TRIES  LAST CALL",
        "22:13:20.002  0    22:13:20.000  0      m0      2.1 ms  1      0.1 ms     finished",
        "22:13:20.012  1    22:13:20.010  0      m0      -       1      -          given back to the queue",
        "22:13:20.013                     0                                        moved from m0 to m1",
        "22:13:20.013  1    22:13:20.010  0      m1      3.1 ms  1      0.1 ms     finished, delivered again",
        "22:13:20.022                     0                                        moved from m1 to m0",
        "22:13:20.022  2    22:13:20.020  0      m0      -       1      -          parked",
        "22:13:20.032  3    22:13:20.030  0      m0      -       1      -          forwarded to its new queue",
        "22:13:20.033                     5                                        moved from m0 to m1",
        "22:13:20.033  3    22:13:20.030  5      m1      3.1 ms  1      0.1 ms     finished: published to queue 0",
        "22:13:20.072                     0                                        moved from m1 to m0",
        "22:13:20.072  5-6                                                         GAP: in no journal",
        "22:13:20.072  7    22:13:20.070  0      m0      2.1 ms  3      -          dead letter, 0.1 ms in all",
        "22:13:20.082  8    22:13:20.080  0      m0      2.1 ms  1      0.1 ms     finished, "
        "not acknowledged: delivered again",
        "22:13:20.085                     0                                        moved from m0 to m1",
        "22:13:20.085  8    22:13:20.080  0      m1      5.1 ms  1      0.1 ms     finished, CALLED AGAIN",
        "22:13:20.090  9    22:13:20.090  0      -       -       -      -          NOT DELIVERED in these journals",
        "history: 14 published and 18 deliveries in the journals; what waits now: lbg group key",
    ]


def test_of_many_records_the_latest_are_shown(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_history, "RECORDS_MAX", 3)
    write_lines(tmp_path / "a.jsonl", life())
    [history] = key_histories(spark, [str(tmp_path)], "k", ["g"])
    assert [one.seq for one in history.lane.steps if isinstance(one, Visit)] == [8, 8, 9]
    assert list(history.lines())[-1].startswith(
        "history: 7 published and 9 deliveries in the journals, 13 older of them are not shown"
    )


def test_a_key_on_two_hashes_has_no_gaps(spark: SparkSession, tmp_path: Path) -> None:
    """A publisher numbers each hash for itself."""
    write_lines(tmp_path / "a.jsonl", [delivered(0), delivered(7, at_us=500, hash_=3)])
    [history] = key_histories(spark, [str(tmp_path)], "k")
    assert history.hashes == (0, 3)
    assert not [one for one in history.lane.steps if isinstance(one, Gap)]
