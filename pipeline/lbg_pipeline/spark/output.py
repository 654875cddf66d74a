"""Output directory of a job, on every file system that Spark writes to."""

from __future__ import annotations

import hashlib
from types import TracebackType
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lbg_core.private_files import DIRECTORY_MODE
from lbg_pipeline.errors import OutputRefused


class Stored:
    """A directory at any URL of Hadoop, which may not exist. Every method raises Py4JJavaError."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.url = url.rstrip("/") or "/"
        context = spark.sparkContext
        self._hadoop: Any = context._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]  # not over Spark Connect
        path = self._hadoop.Path(self.url)
        self._jvm: Any = context._jvm
        self._configuration = context._jsc.hadoopConfiguration()
        self._files = path.getFileSystem(self._configuration)

    def path(self, *names: str) -> str:
        return "/".join((self.url.rstrip("/"), *names)) or "/"

    def matching(self, pattern: str) -> list[str]:
        """Files under the directory, as sorted relative paths."""
        statuses = self._files.globStatus(self._path(pattern)) or []
        depth = pattern.count("/") + 1
        return sorted("/".join(one.getPath().toString().split("/")[-depth:]) for one in statuses)

    def exists(self, *names: str) -> bool:
        return bool(self._files.exists(self._path(*names)))

    def is_free(self) -> bool:
        """True if it is an empty directory, or nothing at all."""
        root = self._path()
        if not self._files.exists(root):
            return True
        return not self._files.getFileStatus(root).isFile() and not self._files.listStatus(root)

    def create_private(self) -> None:
        """Creates the directory for this user alone (mode 0700); one that exists stays as it is."""
        owner_only = self._hadoop.permission.FsPermission(DIRECTORY_MODE)
        self._files.mkdirs(self._path(), owner_only)

    def delete(self, *names: str) -> None:
        self._files.delete(self._path(*names), True)

    def rename(self, name: str, other: str) -> bool:
        """True if the file system has done it."""
        return bool(self._files.rename(self._path(name), self._path(other)))

    def first_line(self, url: str) -> str:
        """Digest of the first line of a file anywhere, after decompression; empty if there is none."""
        path = self._hadoop.Path(url)
        stream = path.getFileSystem(self._configuration).open(path)
        codec = self._jvm.org.apache.hadoop.io.compress.CompressionCodecFactory(self._configuration).getCodec(
            path
        )
        bytes_of = stream if codec is None else codec.createInputStream(stream)
        reader = self._jvm.java.io.BufferedReader(self._jvm.java.io.InputStreamReader(bytes_of, "ISO-8859-1"))
        try:
            line = reader.readLine()
        finally:
            reader.close()
        return hashlib.sha256(line.encode()).hexdigest() if line else ""

    def write(self, name: str, data: bytes) -> None:
        """Writes a file, in place of any former one."""
        stream = self._files.create(self._path(name), True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def leave_out_checksums(self) -> None:
        """No .crc file beside each file, in all that this process writes on this file system, Spark's tables too."""
        self._files.setWriteChecksum(False)

    def _path(self, *names: str) -> Any:
        return self._hadoop.Path(self.path(*names))


_OURS = "_lbg-pipeline"
"""An empty file that marks a directory of LBG's. Spark ignores names that begin with an underscore."""


class Output:
    """The directory `out`. A table or file appears under its name when it is whole, in place of the former one.

    A context: OutputRefused has the file system's reason.
    """

    def __init__(self, spark: SparkSession, out: str) -> None:
        """Raises OutputRefused for a directory with anything of others in it."""
        self.out = out.rstrip("/") or "/"
        self._spark = spark
        self._schemas: dict[str, StructType] = {}
        with self:
            self._stored = Stored(spark, out)
            self._stored.leave_out_checksums()
            if not self._stored.exists(_OURS):
                if not self._stored.is_free():
                    raise OutputRefused(
                        f"{out} contains files that are not of a run: name a new directory with --out"
                    )
                self._stored.write(_OURS, b"")

    def table(self, name: str, table: DataFrame) -> None:
        """As Parquet."""
        table.write.mode("overwrite").parquet(self._stored.path(f"_{name}"))
        self._schemas[name] = table.schema
        with self:
            self._show(name)

    def read(self, name: str) -> DataFrame:
        """A table that this run has written, which costs less than to make it anew."""
        return self._spark.read.schema(self._schemas[name]).parquet(self._stored.path(name))

    def text(self, name: str, text: str) -> None:
        with self:
            self._stored.write(f"_{name}", text.encode())
            self._show(name)

    def without(self, name: str) -> None:
        """Removes the output of an earlier run under a name that this run does not write."""
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
                f"{self._stored.path(name)} cannot be written: its file system cannot rename to it"
            )


def _reason(error: Py4JJavaError) -> str:
    return str(error.java_exception.getMessage() or error.java_exception.getClass().getSimpleName())
