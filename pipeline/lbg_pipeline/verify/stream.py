"""Verification of journals while they are written: `validate --stream`.

`{checkpoint}/lbg/epoch=N` has the memory and the held records after epoch N, and is written as a whole before any table
is. An epoch that is tried again, because its process was killed, reads the state of the epoch before it and writes the
same once more; tables have a directory for each epoch, which is replaced. So nothing is doubled (ADR 0036).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from threading import Event
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StructField, StructType

from lbg_core.counted_nouns import counted
from lbg_pipeline.columns import NEVER
from lbg_pipeline.errors import JournalNotFound
from lbg_pipeline.journal import scan_journals
from lbg_pipeline.journal.scan import literal
from lbg_pipeline.schemas import BROKEN
from lbg_pipeline.spark.output import Output, Stored
from lbg_pipeline.verify.incidents import LISTED, Incidents, Row, first_rows, incidents_of
from lbg_pipeline.verify.page import report_page
from lbg_pipeline.verify.report import SHOWN, Report, report_lines
from lbg_pipeline.verify.settings import StreamSettings, Window
from lbg_pipeline.verify.stream_bucket import bucket_checker, pieces_of, unpacker
from lbg_pipeline.verify.stream_columns import BUCKETS, PIECES, piece, unpacked
from lbg_pipeline.verify.stream_findings import FINDING_TABLES
from lbg_pipeline.verify.stream_state import FILES, LONGEST_PAUSE, Totals
from lbg_pipeline.verify.tables import BREAKING, COPIES, LOST, MOVES, OFFENCES, VERDICTS
from lbg_pipeline.verify.unchecked import unchecked_groups

FOREVER = 1 << 61
PIECES_TABLE: StructType = from_arrow_schema(PIECES)
REST = "rest"
"""Records held back when the process ended, checked as if the journals ended there."""


@dataclass(slots=True)
class Front:
    """Progress of the stream after an epoch: the latest time that any record has, the watermark, all counts, and the
    files that were read, by their first lines."""

    latest_us: int = NEVER
    until_us: int = NEVER
    totals: Totals = field(default_factory=Totals)
    files: dict[str, str] = field(default_factory=dict)
    records: int = 0
    state_bytes: int = 0
    held_rows: int = 0
    findings: dict[str, int] = field(default_factory=dict)


OnFront = Callable[[int, Front], None]


class Epochs:
    """`checkpoint` and `out` are directories at any URL of Spark."""

    def __init__(self, spark: SparkSession, checkpoint: str, out: str, settings: StreamSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._stored = Stored(spark, f"{checkpoint.rstrip('/')}/lbg")
        self._out = Stored(spark, out)
        self._front: tuple[int, Front] | None = None
        self._slice_us = max(1_000_000, round(settings.watermark_s * 1e6) // 8)

    def run(self, files: list[str], epoch: int) -> Front:
        """Checks epoch `epoch`, which consists of `files`."""
        before = self.front(epoch - 1)
        window = self._window(before)
        self._forget(epoch, window)
        once, read, copied = self._without_copies(files, before.files)
        made = [
            piece(0, "new", "files", pa.Table.from_pylist(read, FILES)),
            piece(0, "new", "copies", pa.Table.from_pylist(copied, FINDING_TABLES["copies"].arrow)),
        ]
        new = self._spark.createDataFrame(pa.Table.from_pylist(made, PIECES), PIECES_TABLE)
        if once:
            step = pieces_of(self._settings.groups)
            paths = [literal(file) for file in once]
            new = new.unionAll(scan_journals(self._spark, paths, step, PIECES_TABLE))
        front = self._advance(new, epoch, f"epoch={epoch}", window)
        self._front = epoch, front
        return front

    def _without_copies(
        self, files: list[str], known: Mapping[str, str]
    ) -> tuple[list[str], list[dict[str, Any]], list[dict[str, Any]]]:
        """The files to read, and rows of FILES and of COPIES. No two records are the same, so that a file that begins
        as another one, under another name or compressed, is its copy."""
        first_of = dict(known)
        once, read, copied = [], [], []
        for file in sorted(files):
            head = self._stored.first_line(file)
            first = first_of.setdefault(head, file) if head else file
            if first != file:
                copied.append({"file": first, "other": file})
                continue
            once.append(file)
            if head:
                read.append({"head": head, "file": file})
        return once, read, copied

    def run_rest(self, last: int) -> Front:
        """Checks the held records of epoch `last`, as if the journals ended there. The next start reverts it:
        `roll_back`."""
        if last < 0:
            return Front()
        before = self.front(last)
        seconds_us = round(self._settings.lost_after_s * 1e6)
        window = Window(
            before.until_us,
            FOREVER,
            round(self._settings.clock_skew_s * 1e6),
            before.latest_us - seconds_us,
            NEVER,
            is_last=True,
        )
        return self._advance(None, last + 1, REST, window)

    def roll_back(self, last: int) -> None:
        """Deletes tables written after epoch `last`: by an epoch that did not end, or of the rest."""
        for path in self._out.matching("*/epoch=*"):
            epoch = path.rpartition("=")[2]
            if epoch == REST or int(epoch) > last:
                self._out.delete(path)
        self._stored.delete(REST)

    def front(self, epoch: int) -> Front:
        """As epoch `epoch` left it; the start for -1."""
        if self._front is not None and self._front[0] == epoch:
            return self._front[1]
        return Front() if epoch < 0 else self._front_in(self._stored.path(f"epoch={epoch}"))

    def _window(self, before: Front) -> Window:
        settings = self._settings
        until_us = NEVER
        if before.latest_us > NEVER:
            until_us = max(before.until_us, before.latest_us - round(settings.watermark_s * 1e6))
        return Window(
            after_us=before.until_us,
            until_us=until_us,
            skew_us=round(settings.clock_skew_s * 1e6),
            lost_upto_us=until_us - round(settings.lost_after_s * 1e6),
            forget_upto_us=until_us - round(settings.forget_s * 1e6),
        )

    def _advance(self, new: DataFrame | None, epoch: int, name: str, window: Window) -> Front:
        left = self._left(epoch, window) if epoch > 0 else None
        pieces = [each for each in (new, left) if each is not None]
        inputs = pieces[0] if len(pieces) == 1 else pieces[0].unionByName(pieces[1])
        outputs = inputs.groupBy("bucket").applyInArrow(bucket_checker(window, self._slice_us), PIECES_TABLE)
        path = self._stored.path(name)
        outputs.write.mode("overwrite").partitionBy("kind", "slice_us").parquet(path)
        front = self._front_in(path)
        for table in front.findings:
            schema = FINDING_TABLES[table]
            blobs = self._spark.read.schema(PIECES_TABLE).parquet(path)
            blobs = blobs.where((F.col("kind") == "found") & (F.col("name") == table)).select("blob")
            rows = blobs.mapInArrow(unpacker(schema.arrow), schema.spark)
            rows.write.mode("overwrite").parquet(
                self._out.path(table, name if name != REST else f"epoch={REST}")
            )
        return front

    def _left(self, epoch: int, window: Window) -> DataFrame:
        """Input of `epoch` from the epochs before: the state, and the held deliveries that are due. The rest
        was read before, but for deliveries that the last epoch has held again."""
        every = self._spark.read.schema(
            StructType([*PIECES_TABLE, StructField("epoch", LongType())])
        ).parquet(self._stored.url)
        is_last = F.col("epoch") == epoch - 1
        state = (F.col("kind") == "state") & is_last
        due = (F.col("slice_us") <= window.until_us) & ((F.col("slice_us") > window.after_us) | is_last)
        held = (F.col("kind") == "held") & (F.col("epoch") < epoch) & due
        return every.where(state | held).drop("epoch")

    def _front_in(self, path: str) -> Front:
        rows = (
            self._spark.read.schema(PIECES_TABLE)
            .parquet(path)
            .withColumn("bytes", F.length("blob"))
            .withColumn("blob", F.when(F.col("name").isin("totals", "files"), F.col("blob")))
            .collect()
        )
        front = Front()
        for row in rows:
            if row["kind"] == "found":
                front.findings[row["name"]] = front.findings.get(row["name"], 0) + row["rows"]
                continue
            if row["kind"] == "held":
                front.held_rows += row["rows"]
                continue
            front.latest_us = max(front.latest_us, row["latest_us"])
            front.until_us = max(front.until_us, row["until_us"])
            front.state_bytes += row["bytes"]
            if row["name"] == "files":
                front.files |= {one["head"]: one["file"] for one in unpacked(bytes(row["blob"])).to_pylist()}
            elif row["blob"] is not None:
                for one in unpacked(bytes(row["blob"])).to_pylist():
                    front.totals.add(one["group"], one["what"], one["count"])
        return front

    def _forget(self, epoch: int, window: Window) -> None:
        """Deletes state that neither a retry of this epoch nor a later one needs."""
        retained = {epoch - 1}
        for path in self._stored.matching("epoch=*/kind=held/slice_us=*"):
            of_epoch, _, slice_ = path.split("/")
            if int(slice_.partition("=")[2]) > window.after_us:
                retained.add(int(of_epoch.partition("=")[2]))
        for name in self._stored.matching("epoch=*"):
            if int(name.partition("=")[2]) not in retained:
                self._stored.delete(name)


MAX_FILE_AGE = "30d"
"""Memory of files, before the newest one's time; older files are ignored."""

_POLL_S: Any = 0.2  # pyspark says int, and takes both

_FILES = "path string, modificationTime timestamp, length long, content binary"

OnEpoch = Callable[[int, Front, int, float], None]
"""Of each epoch: its number, progress of the stream, the bytes read and the seconds taken."""


def follow(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    checkpoint: str,
    out: str,
    settings: StreamSettings,
    trigger_s: float | None,
    stopped: Event,
    on_epoch: OnEpoch,
) -> Front:
    """Until `stopped`, or without `trigger_s` until all files are checked. Returns the final front, with the held
    records checked as if the journals ended there."""
    # Rows are few and large here: a reader's or worker's batch of thousands would be gigabytes.
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", "false")
    spark.conf.set("spark.sql.shuffle.partitions", min(BUCKETS, 2 * spark.sparkContext.defaultParallelism))
    Stored(spark, checkpoint).create_private()
    epochs = Epochs(spark, checkpoint, out, settings)
    commits = Stored(spark, f"{checkpoint.rstrip('/')}/spark")
    last = _last_committed(commits)
    epochs.roll_back(last)

    def check_epoch(files: DataFrame, epoch: int) -> None:
        nonlocal last
        began = time.monotonic()
        rows = files.collect()
        front = epochs.run([row["path"] for row in rows], epoch)
        last = epoch
        on_epoch(epoch, front, sum(row["length"] for row in rows), time.monotonic() - began)

    files = _files(spark, paths, settings)
    writer = files.writeStream.foreachBatch(check_epoch).option("checkpointLocation", commits.url)
    writer = (
        writer.trigger(processingTime=f"{trigger_s} seconds")
        if trigger_s
        else writer.trigger(availableNow=True)
    )
    query = writer.start()
    _wait(query, stopped)
    epochs.roll_back(last)
    return epochs.run_rest(last)


def _files(spark: SparkSession, paths: Sequence[str], settings: StreamSettings) -> DataFrame:
    """The names and sizes of new files; their content is not read here."""
    reader = spark.readStream.format("binaryFile").schema(_FILES)
    reader = reader.option("maxBytesPerTrigger", settings.epoch_bytes).option("maxFileAge", MAX_FILE_AGE)
    # Subdirectories may hold anything, even what this job writes.
    reader = reader.option("recursiveFileLookup", True).option("pathGlobFilter", "*.jsonl*")
    try:
        every = [reader.load(path).select("path", "length") for path in paths]
    except AnalysisException as error:
        raise JournalNotFound(f"{', '.join(paths)}: {str(error).splitlines()[0]}") from error
    return reduce(DataFrame.unionAll, every)


def _wait(query: StreamingQuery, stopped: Event) -> None:
    while not query.awaitTermination(_POLL_S):
        if stopped.is_set():
            # Not in the middle of an epoch: it would only be done again.
            while query.isActive and query.status["isTriggerActive"]:
                time.sleep(0.05)
            query.stop()
            return


def _last_committed(spark_checkpoint: Stored) -> int:
    return max(
        (int(path.rpartition("/")[2]) for path in spark_checkpoint.matching("commits/[0-9]*")), default=-1
    )


@dataclass(frozen=True, slots=True)
class StreamReport:
    """`late`: records that came after the watermark had passed them. `recovered`: messages reported as lost that came
    after all; they are not among the lost of the verdicts."""

    report: Report
    late: int
    recovered: int

    def as_json(self) -> dict[str, Any]:
        return {**self.report.as_json(), "late": self.late, "found": self.recovered}

    def lines(self) -> Iterator[str]:
        yield from report_lines(self.report)
        yield from self.warnings()

    def warnings(self) -> Iterator[str]:
        if self.recovered:
            yield f"{counted(self.recovered, 'message')} reported as lost came after all: see table found"
        if self.late:
            yield (
                f"{self.late} RECORDS CAME AFTER THE WATERMARK and were not checked for order (table late): validate "
                "the journals without --stream, and raise --watermark"
            )


def stream_journals(
    spark: SparkSession,
    paths: Sequence[str],
    out: str,
    *,
    checkpoint: str,
    settings: StreamSettings,
    trigger_s: float | None,
    stopped: Event,
    on_epoch: OnEpoch,
    exactly_once: bool = False,
    made_by: str = "",
) -> StreamReport:
    """Raises JournalNotFound and OutputRefused; a record of a newer version ends it before its epoch is written."""
    output = Output(spark, out)
    front = follow(
        spark,
        paths,
        checkpoint=checkpoint,
        out=out,
        settings=settings,
        trigger_s=trigger_s,
        stopped=stopped,
        on_epoch=on_epoch,
    )
    verdicts = [_verdict(group, counts, exactly_once) for group, counts in front.totals.by_group().items()]
    unchecked = unchecked_groups(spark, paths, settings.groups, verdicts)
    result, incidents, broken = _report(
        spark, Stored(spark, out), front, verdicts, unchecked, exactly_once=exactly_once
    )
    output.table("verdicts", spark.createDataFrame(list(result.report.verdicts), VERDICTS).coalesce(1))
    output.text("report.json", json.dumps(result.as_json(), indent=2) + "\n")
    warnings = tuple(result.warnings())
    made = report_page(result.report, incidents, broken, journals=paths, made_by=made_by, warnings=warnings)
    output.text("report.html", made)
    return result


def _report(
    spark: SparkSession,
    out: Stored,
    front: Front,
    verdicts: Sequence[dict[str, Any]],
    unchecked: Sequence[dict[str, Any]],
    *,
    exactly_once: bool,
) -> tuple[StreamReport, Incidents, list[Row]]:
    by_group = front.totals.by_group()

    def table(name: str, schema: Any) -> DataFrame:
        if not out.exists(name):
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).parquet(out.path(name))

    broken = table("broken", BROKEN)
    lost = table("lost", LOST).join(
        table("found", LOST), ["group", "publisher", "hash", "first"], "left_anti"
    )
    incidents = incidents_of(
        spark,
        verdicts,
        offences=table("offences", OFFENCES),
        lost=lost,
        lost_messages=None,
        moves=table("moves", MOVES),
        runs=(),
        exactly_once=exactly_once,
    )
    broken_rows = first_rows(broken, LISTED, "file", "line")
    report = Report(
        verdicts=verdicts,
        broken_lines=broken.count(),
        copies=first_rows(table("copies", COPIES), SHOWN, "file", "other"),
        affected=incidents.affected,
        first_keys=incidents.keys[:SHOWN],
        first_offences=incidents.offences[:SHOWN],
        first_lost=incidents.lost[:SHOWN],
        first_broken_lines=broken_rows[:SHOWN],
        unchecked=unchecked,
    )

    def total(name: str) -> int:
        return sum(counts.get(name, 0) for counts in by_group.values())

    return StreamReport(report, late=total("late"), recovered=total("found")), incidents, broken_rows


def _verdict(group: str, counts: dict[str, int], exactly_once: bool) -> dict[str, Any]:
    row: dict[str, Any] = {name: counts.get(name, 0) for name in VERDICTS.names[2:]}
    row["lost"] = counts.get("lost", 0) - counts.get("found", 0)
    row[LONGEST_PAUSE] = counts.get(LONGEST_PAUSE)
    breaking = (*BREAKING, "repeated") if exactly_once else BREAKING
    verdict = "sound" if row["published"] else "unchecked"
    if any(row[name] for name in breaking):
        verdict = "broken"
    return {"group": group, "verdict": verdict if row["delivered"] else "unchecked", **row}
