"""A followed directory: after a stop or a kill, the result equals that of the whole, each finding once."""

from __future__ import annotations

import gzip
import os
import signal
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from lbg_pipeline.errors import CheckpointRefused, NewerSchema, error_of
from lbg_pipeline.verify.settings import StreamSettings
from testing.journal.broken_lines import newer_line
from testing.journal.by_seconds import records_by_file, write_second
from testing.pipeline.reference import judge


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Front, SparkSession, expected_offences, follow, rewrite_state, told_offences
    global MESSAGE_COUNTS, with_unknown_column
    from pyspark.sql import SparkSession

    from lbg_pipeline.verify.stream import Front, follow
    from lbg_pipeline.verify.tables import MESSAGE_COUNTS
    from testing.pipeline.checkpoint_layouts import rewrite_state, with_unknown_column
    from testing.pipeline.streamed import expected_offences, told_offences


pytestmark = pytest.mark.slow

SECONDS = 6
SETTINGS = StreamSettings(watermark_s=2.0, lost_after_s=0.5, epoch_bytes=30_000)

_FOLLOWER = """
import sys
from threading import Event
from lbg_pipeline.spark.session import spark_session
from lbg_pipeline.verify.stream import follow
from lbg_pipeline.verify.settings import StreamSettings

journal, checkpoint, out = sys.argv[1:]
small = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
spark = spark_session("killed", master="local[2]", settings=small)
settings = StreamSettings(watermark_s=2.0, lost_after_s=0.5, epoch_bytes=30_000)
follow(spark, [journal], checkpoint=checkpoint, out=out, settings=settings, trigger_s=None, stopped=Event(),
       on_epoch=lambda epoch, *told: print("epoch", epoch, flush=True))
"""


def _follow(spark: SparkSession, place: Path, told: list[int]) -> Front:
    return follow(
        spark,
        [str(place / "journal")],
        checkpoint=str(place / "checkpoint"),
        out=str(place / "out"),
        settings=SETTINGS,
        trigger_s=None,
        stopped=Event(),
        on_epoch=lambda epoch, *_: told.append(epoch),
    )


def _rows(spark: SparkSession, place: Path, table: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in spark.read.parquet(str(place / "out" / table)).collect()]


def _check_whole(spark: SparkSession, place: Path, front: Front) -> None:
    records = [one for of_file in records_by_file(SECONDS).values() for one in of_file]
    judged = judge(records, settle_s=SETTINGS.lost_after_s)["g"]
    assert judged.offences
    assert judged.lost
    assert told_offences(_rows(spark, place, "offences"), "g", but=frozenset()) == expected_offences(
        judged, but=frozenset()
    )
    lost = [(one["publisher"], one["hash"], one["first"], one["last"]) for one in _rows(spark, place, "lost")]
    assert lost == [(one.publisher, one.hash, one.first, one.last) for one in judged.lost]
    moves = [(one["was"], one["now"], one["at_us"], one["pause_us"]) for one in _rows(spark, place, "moves")]
    assert Counter(moves) == Counter((one.was, one.now, one.at_us, one.pause_us) for one in judged.moves)
    complete: Counter[str] = Counter()
    for one in _rows(spark, place, "completeness"):
        complete.update({name: value for name, value in one.items() if name in MESSAGE_COUNTS})
    assert complete == {name: judged.total(name) for name in complete}
    totals = front.totals.by_group()["g"]
    assert totals["delivered"] == judged.delivered
    assert totals.get("late", 0) == 0


def test_stopped_and_started_again_with_new_files_the_answer_is_that_of_the_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    files, told = records_by_file(SECONDS), []
    for second in range(SECONDS):
        if second == SECONDS // 2:
            _follow(spark, tmp_path, told)
        write_second(tmp_path / "journal", files, second)
    front = _follow(spark, tmp_path, told)
    assert told == sorted(set(told))
    assert len(told) > 2
    _check_whole(spark, tmp_path, front)


def test_a_file_that_comes_again_under_another_name_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    """Beside the file, and compressed when the stream is started again."""
    files, told = records_by_file(SECONDS), []
    for second in range(SECONDS):
        write_second(tmp_path / "journal", files, second)
    of_member = tmp_path / "journal" / "member-0-01.jsonl"
    (tmp_path / "journal" / "member-0-01-copy.jsonl").write_bytes(of_member.read_bytes())
    _follow(spark, tmp_path, told)
    for name in ("published-02", "member-1-03"):
        text = (tmp_path / "journal" / f"{name}.jsonl").read_bytes()
        (tmp_path / "journal" / f"{name}.jsonl.gz").write_bytes(gzip.compress(text))
    front = _follow(spark, tmp_path, told)
    _check_whole(spark, tmp_path, front)
    copied = sorted(
        (Path(one["file"]).name, Path(one["other"]).name) for one in _rows(spark, tmp_path, "copies")
    )
    assert copied == [
        ("member-0-01.jsonl", "member-0-01-copy.jsonl"),
        ("member-1-03.jsonl", "member-1-03.jsonl.gz"),
        ("published-02.jsonl", "published-02.jsonl.gz"),
    ]


def test_the_directory_of_the_state_is_its_owners_alone(spark: SparkSession, tmp_path: Path) -> None:
    write_second(tmp_path / "journal", records_by_file(SECONDS), 0)
    _follow(spark, tmp_path, [])
    assert stat.S_IMODE((tmp_path / "checkpoint").stat().st_mode) == 0o700


def test_killed_in_the_middle_of_an_epoch_it_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = records_by_file(SECONDS)
    for second in range(SECONDS):
        write_second(tmp_path / "journal", files, second)
    command = [
        sys.executable,
        "-c",
        _FOLLOWER,
        *(str(tmp_path / name) for name in ("journal", "checkpoint", "out")),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "epoch 0\n"
        [jvm] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for one in (process.pid, int(jvm)):
            os.kill(one, signal.SIGKILL)
    told: list[int] = []
    front = _follow(spark, tmp_path, told)
    assert told
    _check_whole(spark, tmp_path, front)


def test_a_checkpoint_in_an_unknown_layout_is_refused_and_left_as_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = records_by_file(SECONDS)
    write_second(tmp_path / "journal", files, 0)
    _follow(spark, tmp_path, [])
    changed, *_ = rewrite_state(tmp_path / "checkpoint", with_unknown_column)
    before = changed.read_bytes()
    write_second(tmp_path / "journal", files, 1)
    with pytest.raises(Exception, match="CheckpointRefused") as raised:
        _follow(spark, tmp_path, [])
    assert str(error_of(raised.value)).startswith("the checkpoint was written by another version of LBG")
    assert isinstance(error_of(raised.value), CheckpointRefused)
    assert changed.read_bytes() == before


def test_a_newer_version_is_refused_before_its_epoch_is_written(spark: SparkSession, tmp_path: Path) -> None:
    files = records_by_file(SECONDS)
    write_second(tmp_path / "journal", files, 0)
    with (tmp_path / "journal" / "published-00.jsonl").open("ab") as file:
        file.write(newer_line() + b"\n")
    with pytest.raises(Exception, match="NewerSchema") as raised:
        _follow(spark, tmp_path, [])
    assert isinstance(error_of(raised.value), NewerSchema)
    assert not list((tmp_path / "out").glob("*/epoch=*"))
