"""Following journals: Spark's file source says which files are new and remembers which were done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import reduce
from threading import Event
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from lbg_pipeline.errors import JournalNotFound
from lbg_pipeline.stored import Stored

from .epochs import Epochs, Front
from .rows import BUCKETS
from .settings import StreamSettings

KNOWN_FILES_AGE = "30d"
"""Files are remembered so long, by the newest one's time; what was changed before is passed over."""

_LOOK_S: Any = 0.2  # pyspark says int, and takes both

_FILES = "path string, modificationTime timestamp, length long, content binary"

Tell = Callable[[int, Front, int, float], None]
"""Of each epoch: its number, how far the stream is, the bytes read and the seconds taken."""


def follow(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    checkpoint: str,
    out: str,
    settings: StreamSettings,
    trigger_s: float | None,
    stopped: Event,
    tell: Tell,
) -> Front:
    """Until `stopped`, or without `trigger_s` until all that is there is judged. Returns the last word, with what was
    held back judged as if nothing more came."""
    # Rows are few and large here: a reader's or worker's batch of thousands would be gigabytes.
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", "false")
    spark.conf.set("spark.sql.shuffle.partitions", min(BUCKETS, 2 * spark.sparkContext.defaultParallelism))
    epochs = Epochs(spark, checkpoint, out, settings)
    commits = Stored(spark, f"{checkpoint.rstrip('/')}/spark")
    last = _last_committed(commits)
    epochs.take_back(last)

    def judge(files: DataFrame, epoch: int) -> None:
        nonlocal last
        began = time.monotonic()
        rows = files.collect()
        front = epochs.run([row["path"] for row in rows], epoch)
        last = epoch
        tell(epoch, front, sum(row["length"] for row in rows), time.monotonic() - began)

    files = _files(spark, paths, settings)
    writer = files.writeStream.foreachBatch(judge).option("checkpointLocation", commits.url)
    writer = (
        writer.trigger(processingTime=f"{trigger_s} seconds")
        if trigger_s
        else writer.trigger(availableNow=True)
    )
    query = writer.start()
    _wait(query, stopped)
    epochs.take_back(last)
    return epochs.run_rest(last)


def _files(spark: SparkSession, paths: Sequence[str], settings: StreamSettings) -> DataFrame:
    """The names and sizes of new files; their content is not read here."""
    reader = spark.readStream.format("binaryFile").schema(_FILES)
    reader = reader.option("maxBytesPerTrigger", settings.epoch_bytes).option("maxFileAge", KNOWN_FILES_AGE)
    try:
        every = [reader.load(path).select("path", "length") for path in paths]
    except AnalysisException as error:
        raise JournalNotFound(f"{', '.join(paths)}: {str(error).splitlines()[0]}") from error
    return reduce(DataFrame.unionAll, every)


def _wait(query: StreamingQuery, stopped: Event) -> None:
    while not query.awaitTermination(_LOOK_S):
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
