"""Files wherever Spark keeps them: what Spark itself offers only to the JVM."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


class Stored:
    """A directory at any URL that Hadoop knows, there or not. Everything raises Py4JJavaError."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.url = url.rstrip("/") or "/"
        context = spark.sparkContext
        self._hadoop: Any = context._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]  # not over Spark Connect
        path = self._hadoop.Path(self.url)
        self._files = path.getFileSystem(context._jsc.hadoopConfiguration())

    def path(self, *names: str) -> str:
        return "/".join((self.url.rstrip("/"), *names)) or "/"

    def matching(self, pattern: str) -> list[str]:
        """What is under the directory, as paths relative to it, rising."""
        found = self._files.globStatus(self._path(pattern)) or []
        depth = pattern.count("/") + 1
        return sorted("/".join(one.getPath().toString().split("/")[-depth:]) for one in found)

    def exists(self, *names: str) -> bool:
        return bool(self._files.exists(self._path(*names)))

    def is_free(self) -> bool:
        """Whether it is an empty directory, or nothing at all."""
        root = self._path()
        if not self._files.exists(root):
            return True
        return not self._files.getFileStatus(root).isFile() and not self._files.listStatus(root)

    def delete(self, *names: str) -> None:
        self._files.delete(self._path(*names), True)

    def rename(self, name: str, other: str) -> bool:
        """Whether the file system has done it."""
        return bool(self._files.rename(self._path(name), self._path(other)))

    def write(self, name: str, data: bytes) -> None:
        """A file, in place of what was there."""
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
