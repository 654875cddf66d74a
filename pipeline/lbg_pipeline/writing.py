"""Where results go: a directory of ours, on whatever file system Spark writes to. The only place that writes."""

from __future__ import annotations

from types import TracebackType

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from .errors import OutputRefused
from .stored import Stored

_OURS = "_lbg-pipeline"
"""An empty file that says whose directory it is. Spark passes over names that begin with an underscore."""


class Output:
    """The directory `out`. What is written appears under its name when it is whole, in place of what was there.

    A context: OutputRefused says what the file system says.
    """

    def __init__(self, spark: SparkSession, out: str) -> None:
        """Raises OutputRefused for a directory with anything of others in it."""
        self.out = out.rstrip("/") or "/"
        self._spark = spark
        with self:
            self._stored = Stored(spark, out)
            self._stored.leave_out_checksums()
            if not self._stored.exists(_OURS):
                if not self._stored.is_free():
                    raise OutputRefused(f"{out} has other things in it: name a new directory with --out")
                self._stored.write(_OURS, b"")

    def table(self, name: str, table: DataFrame) -> None:
        """As Parquet."""
        table.write.mode("overwrite").parquet(self._stored.path(f"_{name}"))
        with self:
            self._show(name)

    def read(self, name: str) -> DataFrame:
        """A table as it was written, which costs less than to make it anew."""
        return self._spark.read.parquet(self._stored.path(name))

    def text(self, name: str, text: str) -> None:
        with self:
            self._stored.write(f"_{name}", text.encode())
            self._show(name)

    def without(self, name: str) -> None:
        """What an earlier run left under a name that this one has nothing for."""
        with self:
            self._stored.delete(name)

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if isinstance(error, Py4JJavaError):
            raise OutputRefused(
                f"{self.out} cannot be written: {_reason(error)}: name another with --out"
            ) from error

    def _show(self, name: str) -> None:
        self._stored.delete(name)
        if not self._stored.rename(f"_{name}", name):
            raise OutputRefused(
                f"{self._stored.path(name)} cannot be written: its file system does not rename to it"
            )


def _reason(error: Py4JJavaError) -> str:
    return str(error.java_exception.getMessage() or error.java_exception.getClass().getSimpleName())
