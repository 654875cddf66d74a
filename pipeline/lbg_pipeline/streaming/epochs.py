"""The epochs of a stream: each judges what is due by the watermark, and leaves what the next one needs.

`{checkpoint}/lbg/epoch=N` holds what is remembered and held back after epoch N, and is written as a whole before any
table is. An epoch that is tried again, because its process was killed, reads what the epoch before it left and writes
the same once more; tables have a directory for each epoch, which is replaced. So nothing is doubled (ADR 0036).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from lbg_pipeline.reading import scan_journals
from lbg_pipeline.stored import Stored

from .memory import Totals
from .pieces import judging, pieces_of, unpacking
from .rows import NEVER, unpacked
from .settings import StreamSettings, Window
from .tables import FOUND, PIECES_TABLE

FOREVER = 1 << 61
REST = "rest"
"""What was held back when the process ended, judged as if nothing more came."""


@dataclass(slots=True)
class Front:
    """How far the stream is after an epoch: the latest time that any record has, the watermark, and all counts."""

    latest_us: int = NEVER
    until_us: int = NEVER
    totals: Totals = field(default_factory=Totals)
    records: int = 0
    state_bytes: int = 0
    held_rows: int = 0
    found: dict[str, int] = field(default_factory=dict)


Tell = Callable[[int, Front], None]


class Epochs:
    """`checkpoint` and `out` are directories at any URL that Spark knows."""

    def __init__(self, spark: SparkSession, checkpoint: str, out: str, settings: StreamSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._stored = Stored(spark, f"{checkpoint.rstrip('/')}/lbg")
        self._out = Stored(spark, out)
        self._front: tuple[int, Front] | None = None
        self._slice_us = max(1_000_000, round(settings.watermark_s * 1e6) // 8)

    def run(self, files: list[str], epoch: int) -> Front:
        """Judge epoch `epoch`, for which `files` have come."""
        before = self.front(epoch - 1)
        window = self._window(before)
        self._forget(epoch, window)
        new = scan_journals(
            self._spark,
            files,
            pieces_of(self._settings.groups),
            PIECES_TABLE,
            default_group=self._settings.default_group,
        )
        front = self._advance(new, epoch, f"epoch={epoch}", window)
        self._front = epoch, front
        return front

    def run_rest(self, last: int) -> Front:
        """Judge what epoch `last` left, as if nothing more came. The next start takes it back: `take_back`."""
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

    def take_back(self, last: int) -> None:
        """Of the tables, what was written after epoch `last`: by an epoch that did not end, or of the rest."""
        for path in self._out.matching("*/epoch=*"):
            told = path.rpartition("=")[2]
            if told == REST or int(told) > last:
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
        given = pieces[0] if len(pieces) == 1 else pieces[0].unionByName(pieces[1])
        judged = given.groupBy("bucket").applyInArrow(judging(window, self._slice_us), PIECES_TABLE)
        path = self._stored.path(name)
        judged.write.mode("overwrite").partitionBy("kind", "slice_us").parquet(path)
        front = self._front_in(path)
        for table in front.found:
            schema = FOUND[table]
            blobs = self._spark.read.schema(PIECES_TABLE).parquet(path)
            blobs = blobs.where((F.col("kind") == "found") & (F.col("name") == table)).select("blob")
            rows = blobs.mapInArrow(unpacking(schema.arrow), schema.table)
            rows.write.mode("overwrite").parquet(
                self._out.path(table, name if name != REST else f"epoch={REST}")
            )
        return front

    def _left(self, epoch: int, window: Window) -> DataFrame:
        """What the epochs before left for `epoch`: what is remembered, and what is held back and due. What was due
        before was read before, but for what the last one has held back again."""
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
            .withColumn("blob", F.when(F.col("name") == "totals", F.col("blob")))
            .collect()
        )
        front = Front()
        for row in rows:
            if row["kind"] == "found":
                front.found[row["name"]] = front.found.get(row["name"], 0) + row["rows"]
                continue
            if row["kind"] == "held":
                front.held_rows += row["rows"]
                continue
            front.latest_us = max(front.latest_us, row["latest_us"])
            front.until_us = max(front.until_us, row["until_us"])
            front.state_bytes += row["bytes"]
            if row["blob"] is not None:
                for one in unpacked(bytes(row["blob"])).to_pylist():
                    front.totals.add(one["group"], one["what"], one["count"])
        return front

    def _forget(self, epoch: int, window: Window) -> None:
        """What neither this epoch needs, should it be tried again, nor any after it."""
        wanted = {epoch - 1}
        for path in self._stored.matching("epoch=*/kind=held/slice_us=*"):
            of_epoch, _, slice_ = path.split("/")
            if int(slice_.partition("=")[2]) > window.after_us:
                wanted.add(int(of_epoch.partition("=")[2]))
        for name in self._stored.matching("epoch=*"):
            if int(name.partition("=")[2]) not in wanted:
                self._stored.delete(name)
