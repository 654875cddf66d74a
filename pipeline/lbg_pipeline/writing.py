"""Where results go: a directory of ours, on whatever file system Spark writes to. The only place that writes."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from .errors import OutputRefused

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
        self._hadoop: Any = spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]  # not over Spark Connect
        with self:
            root = self._hadoop.Path(self.out)
            self._files = root.getFileSystem(spark._jsc.hadoopConfiguration())
            self._files.setWriteChecksum(False)
            if not self._files.exists(self._path(_OURS)):
                if self._files.exists(root) and (
                    self._files.getFileStatus(root).isFile() or self._files.listStatus(root)
                ):
                    raise OutputRefused(f"{out} has other things in it: name a new directory with --out")
                self._files.create(self._path(_OURS), True).close()

    def table(self, name: str, table: DataFrame) -> None:
        """As Parquet."""
        table.write.mode("overwrite").parquet(self._path(f"_{name}").toString())
        with self:
            self._show(name)

    def read(self, name: str) -> DataFrame:
        """A table as it was written, which costs less than to make it anew."""
        return self._spark.read.parquet(self._path(name).toString())

    def text(self, name: str, text: str) -> None:
        with self:
            stream = self._files.create(self._path(f"_{name}"), True)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()
            self._show(name)

    def without(self, name: str) -> None:
        """What an earlier run left under a name that this one has nothing for."""
        with self:
            self._files.delete(self._path(name), True)

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
        hidden, shown = self._path(f"_{name}"), self._path(name)
        self._files.delete(shown, True)
        if not self._files.rename(hidden, shown):
            raise OutputRefused(
                f"{shown.toString()} cannot be written: its file system does not rename to it"
            )

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(f"{self.out}/{name}")


def _reason(error: Py4JJavaError) -> str:
    return str(error.java_exception.getMessage() or error.java_exception.getClass().getSimpleName())
