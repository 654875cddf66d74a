"""Files wherever Spark keeps them: what Spark itself offers only to the JVM."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


class Stored:
    """A directory at any URL that Hadoop knows."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.url = url.rstrip("/")
        context = spark.sparkContext
        self._hadoop: Any = context._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]  # not over Spark Connect
        path = self._hadoop.Path(self.url)
        self._files = path.getFileSystem(context._jsc.hadoopConfiguration())

    def path(self, *names: str) -> str:
        return "/".join((self.url, *names))

    def matching(self, pattern: str) -> list[str]:
        """What is under the directory, as paths relative to it, rising."""
        found = self._files.globStatus(self._path(pattern)) or []
        depth = pattern.count("/") + 1
        return sorted("/".join(one.getPath().toString().split("/")[-depth:]) for one in found)

    def exists(self, *names: str) -> bool:
        return bool(self._files.exists(self._path(*names)))

    def delete(self, *names: str) -> None:
        self._files.delete(self._path(*names), True)

    def _path(self, *names: str) -> Any:
        return self._hadoop.Path(self.path(*names))
