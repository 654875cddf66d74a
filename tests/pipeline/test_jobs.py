"""Every job of the pipeline by its command, on a small journal, beside docs/pipeline-tables.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lbg_core.group import DeliveredRecord, PublishedRecord
from lbgroup.cli import cli
from lbgroup.commands import run
from testing import ROOT
from testing.journal.rows import delivered, published, write_journal, write_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK = ("--master", "local[1]", "--conf", "spark.sql.shuffle.partitions=1")
TABLES = {
    "validate": {"broken", "verdicts", "offences", "lost", "moves", "completeness"},
    "validate --stream": {"broken", "verdicts", "offences", "moves", "completeness"},
    "profile": {"broken", "rates", "demand", "keys", "latencies", "skew", "handoffs", "utilisation"},
    "plan": {"broken", "candidates", "hot_keys"},
    "forecast": {"forecast", "backtest", "schedule"},
}


def test_each_job_writes_its_tables_and_the_page_names_them_with_their_files_and_columns(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet

    monkeypatch.setattr(type(spark), "stop", lambda _: None)  # each job stops what the next one uses
    page = (ROOT / "docs/pipeline-tables.md").read_text()
    for job, arguments in small_jobs(tmp_path).items():
        out = tmp_path / job
        command = ["pipeline", *job.split(), *arguments, "--out", str(out), *SPARK]
        assert run(cli, command) == (1 if "validate" in job else 0), job

        made = {one.name for one in out.iterdir() if not one.name.startswith((".", "_"))}
        assert made >= TABLES[job], job
        words = (
            page.partition("\n## ")[0] + page.partition(f"\n## {job.split()[0]}\n")[2].partition("\n## ")[0]
        )
        assert made <= set(re.findall(r"`([\w.]+)/?`", words)), job
        for table in TABLES[job] if "validate" not in job else ():  # its page has columns in words
            for file in (out / table).rglob("*.parquet"):
                assert set(pyarrow.parquet.read_schema(file).names) <= set(re.findall(r"\w+", words)), table


def small_jobs(place: Path) -> dict[str, list[str]]:
    """Arguments of each job, in an order in which it finds what it reads."""
    write_journal(place / "journal", small_journal())
    write_lines(place / "journal" / "broken.jsonl", ["no record\n"])
    read = ["--journal", str(place / "journal")]
    return {
        "validate": read,
        "validate --stream": ["--available-now", "--checkpoint", str(place / "checkpoint"), *read],
        "profile": read,
        "plan": [*read, "--hash-counts", "4", "--queue-counts", "2"],
        "forecast": [
            *("--demand", str(place / "profile" / "demand"), "--now", "2023-11-14T22:33:00Z"),
            *("--interval", "1m", "--horizon", "5m", "--backtest", "1", "--capacity", "5"),
            *("--max-replicas", "3"),
        ],
    }


def small_journal() -> Iterator[PublishedRecord | DeliveredRecord]:
    """Twenty minutes of three keys; two messages of key 0 change places."""
    for number in range(40):
        at_us, key, seq = number * 30_000_000, number % 3, number // 3
        seq = 3 - seq if number in (3, 6) else seq
        common = {"at_us": at_us, "key": f"k{key}", "hash_": key, "queue": key % 2}
        yield published(seq, **common)
        yield delivered(seq, **common, member=number % 2)
