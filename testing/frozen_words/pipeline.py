"""Words in the tables and files that the pipeline's jobs write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from lbg_core.group import journal_record
from lbgroup.cli import cli as commands
from lbgroup.commands import run as run_command
from testing.frozen_words.words import Words


def parquet_tables(place: Path) -> Words:
    """Columns and types of what every job of the pipeline writes, and the words in columns of words."""
    import pyarrow.parquet

    from lbg_pipeline.verify.stream_findings import FINDING_TABLES

    run_jobs(place)
    found: Words = {}
    for file in sorted(place.glob("*-out/**/*.parquet")):
        out, table, *_ = file.relative_to(place).parts
        job = out.removesuffix("-out")
        rows = pyarrow.parquet.read_table(file)
        words = found.setdefault(f"{job} {table}", set())
        words.update(f"{column.name} {column.type}" for column in rows.schema)
        for name in {"kind", "view", "verdict", "unit", "scope", "metric"} & set(rows.schema.names):
            words.update(f"{name}={value}" for value in rows[name].to_pylist() if value is not None)
    for name, table in FINDING_TABLES.items():  # not each of them has rows here
        columns = {f"{column.name} {column.type}" for column in table.arrow}
        found.setdefault(f"validate --stream {name}", set()).update(columns)
    for file in sorted(place.glob("*-out/*.*")):
        found.setdefault("files", set()).add(f"{file.parts[-2].removesuffix('-out')}: {file.name}")
    return found


def run_jobs(place: Path) -> None:
    """The five jobs on a small journal, in the session of Spark that runs, or in one that the first job starts."""
    from pyspark.sql import SparkSession

    journal_place = place / "journal"
    journal_place.mkdir()
    (journal_place / "a.jsonl").write_text("".join([*sample_journal(), "no record\n"]))
    os.utime(journal_place / "a.jsonl", (1, 1))
    spark = ["--master", "local[1]"]
    for setting in (
        "spark.sql.shuffle.partitions=1",
        "spark.driver.memory=1g",
        "spark.sql.adaptive.enabled=false",
        "spark.sql.codegen.wholeStage=false",
    ):
        spark += ["--conf", setting]
    read = ["--journal", str(journal_place)]
    jobs: dict[str, list[str]] = {
        "validate": ["validate", *read],
        "validate --stream": [
            *("validate", "--stream", "--available-now", "--checkpoint", str(place / "checkpoint"), *read)
        ],
        "profile": ["profile", *read],
        "plan": ["plan", *read, "--hash-counts", "4", "--queue-counts", "2"],
        "forecast": [
            *("forecast", "--demand", str(place / "profile-out" / "demand"), "--now", "2023-11-14T22:33:00Z"),
            *("--interval", "1m", "--horizon", "5m", "--backtest", "1", "--capacity", "5"),
            *("--max-replicas", "3"),
        ],
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SparkSession, "stop", lambda _: None)  # each job stops what the next one uses
        for name, words in jobs.items():
            status = run_command(commands, ["pipeline", *words, "--out", str(place / f"{name}-out"), *spark])
            assert status == (1 if name.startswith("validate") else 0), name
            assert any((place / f"{name}-out").glob("*.json")), name


def sample_journal() -> Iterator[str]:
    """Twenty minutes of three keys, with something out of order, something repeated and an overlap."""
    published, delivered = get_args(journal_record.Record)
    for number in range(40):
        at_us = 1_700_000_000_000_000 + number * 30_000_000
        lane, sequence, member = number % 3, number // 3, number % 2
        if number in (3, 6):  # the second and third message of key 0 change places
            sequence = 3 - sequence
        common = {"publisher": "p-1", "key": f"k{lane}", "hash_": lane, "queue": lane % 2, "seq": sequence}
        common |= {"published_at_us": at_us, "group": "orders", "body_bytes": 10}
        yield journal_record.encode(published(**common, confirmed_at_us=at_us + 1000))
        took_us = (
            120_000_000 if number == 20 else 4000
        )  # and meets the next one of its key at the other member
        times = {"delivered_at_us": at_us + 2000, "started_at_us": at_us + 3000}
        times |= {"finished_at_us": at_us + took_us, "settled_at_us": at_us + took_us + 1000}
        whose = {"member": member, "member_name": f"m{member}", "incarnation": "i", "redelivered": False}
        end = {"attempts": 1, "verdict": "ack"}
        for again in range(2 if number == 30 else 1):
            delivery = 2 * number + again
            yield journal_record.encode(delivered(**common, **times, **whose, **end, delivery=delivery))
