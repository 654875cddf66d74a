"""`lbg pipeline validate` on a master of so many cores: its job, in a process of its own.

`python -m bench.pipeline.ours JOURNAL --cores 2 --memory 4g --scratch DIR`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lbg_pipeline.spark.jobs import shown_progress
from lbg_pipeline.spark.session import spark_session
from lbg_pipeline.verify.batch import validate_journals
from lbg_pipeline.verify.settings import ValidationSettings
from testing.pipeline.answers import Answer, Message


def answer_in(out: Path) -> Answer:
    """Answer from the tables of a validation."""
    (verdict,) = _rows(out, "verdicts")
    lost = [
        _message(row["publisher"], row["hash"], seq)
        for row in _rows(out, "lost")
        for seq in range(row["first"], row["last"] + 1)
    ]
    offences = [
        (row["kind"], row["view"] or "", _message(row["publisher"], row["hash"], row["seq"]))
        for row in _rows(out, "offences")
    ]
    return Answer(
        published=verdict["published"],
        delivered=verdict["delivered"],
        broken_lines=len(_rows(out, "broken")),
        redelivered=verdict["redelivered"],
        moves=len(_rows(out, "moves")),
        unpublished=verdict["unpublished"],
        lost=sorted(lost),
        offences=sorted(offences),
    )


def _rows(out: Path, table: str) -> list[dict[str, Any]]:
    return pq.read_table(out / table).to_pylist()


def _message(publisher: str, hash_: int, seq: int) -> Message:
    return int(publisher.rpartition("-")[2]), hash_, seq


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("journal", type=Path)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="4g")
    parser.add_argument("--scratch", type=Path, required=True)
    arguments = parser.parse_args()
    spark = spark_session(
        "bench",
        master=f"local[{arguments.cores}]",
        settings={
            "spark.driver.memory": arguments.memory,
            "spark.local.dir": str(arguments.scratch / "spark"),
        },
    )
    begun = time.monotonic()
    out = arguments.scratch / "out"
    with shown_progress(spark) as progress:
        validate_journals(
            spark,
            [str(arguments.journal)],
            str(out),
            ValidationSettings(),
            progress=progress,
        )
    job_s = time.monotonic() - begun
    answer = answer_in(out)
    spark.stop()
    print(json.dumps({"answer": json.loads(answer.as_json()), "job_s": job_s}))


if __name__ == "__main__":
    main()
