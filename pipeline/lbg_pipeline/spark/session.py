"""Spark session of a command, and its failures as one line."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lbg_pipeline.errors import JobFailed, PipelineError, SparkUnusable, error_of

DRIVER_MEMORY = "4g"
"""In local mode all the work is done in the driver; Spark's own default of 1g is for drivers that only coordinate."""

SHUFFLE_PARTITION_BYTES = 64 << 20
"""Bytes read for each partition of a shuffle: the narrow rows that get there are a fraction of it."""

_PARTITIONS = "spark.sql.shuffle.partitions"
_LOGGING = Path(__file__).with_name("log4j2.properties")
_JAVA_OPTIONS = (
    f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} -Dlog4j.configurationFile={_LOGGING.as_uri()} "
    # The work is done in Python: what the JVM would save by optimising more, it never earns back in a job of minutes.
    "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC "
    # A fifth of a short job is the verification of classes, which pip has installed as Spark's developers built them.
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)


def spark_session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on `master`, by default spark-submit's where there is one and local[*] elsewhere. `settings` are
    Spark's own, by its names, and win over ours. Raises SparkUnusable."""
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted:
        _require_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None or not is_submitted:
        builder = builder.master(master or "local[*]")
    ours = {"spark.sql.session.timeZone": "UTC", "spark.ui.showConsoleProgress": "false"}
    if not is_submitted:
        ours |= {
            "spark.driver.memory": DRIVER_MEMORY,
            "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
            "spark.ui.enabled": "false",
        }
        if (master or "local").startswith("local"):
            # What runs on this machine alone need not be reachable from others.
            ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
            # Plans are chosen for the input's size (`fit_shuffles`): to plan again after each stage costs a second.
            ours["spark.sql.adaptive.enabled"] = "false"
    for key, value in {**ours, **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
        fit_shuffles(spark)
        return spark
    except PySparkException as error:
        raise SparkUnusable(f"Spark does not start: {_first_line(error)}") from error
    except Exception as error:  # py4j's, with the whole stack of the JVM in its text
        raise SparkUnusable(
            f"Spark does not start with master {master or 'local[*]'}: {_first_line(error)}"
        ) from error


def fit_shuffles(spark: SparkSession, *, read_bytes: int = 0) -> None:
    """Shuffle partitions on one machine, for a job that reads `read_bytes`. A task costs some ten milliseconds however
    little it has to do, and Spark's 200 for each shuffle are for clusters; too few make partitions that do not fit
    memory. The user's setting takes precedence."""
    context = spark.sparkContext
    if str(context.master).startswith("local") and not context.getConf().contains(_PARTITIONS):
        fitting = math.ceil(read_bytes / SHUFFLE_PARTITION_BYTES)
        spark.conf.set(_PARTITIONS, max(2 * context.defaultParallelism, fitting))


def size_bytes(table: DataFrame) -> int:
    """Of the files that `table` reads, as Spark's planner has it; nothing is read."""
    return int(str(table._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if home:
        if not os.access(Path(home, "bin", "java"), os.X_OK):
            raise SparkUnusable(f"JAVA_HOME is {home}, which has no bin/java: correct or unset it")
    elif shutil.which("java") is None:
        raise SparkUnusable(
            "Spark needs Java 17 or 21, and none is installed: install a JRE (Debian: "
            "apt-get install default-jre-headless)"
        )


def _first_line(error: Exception) -> str:
    text_lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [
        line for line in text_lines if ("Exception:" in line or "Error:" in line) and " at " not in line
    ]
    return (causes or text_lines or [type(error).__name__])[0].removeprefix(": ")


@contextmanager
def spark_job(name: str, master: str | None, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """`conf` are settings of Spark's. Raises PipelineError in place of Spark's errors."""
    spark = spark_session(f"lbg {name}", master=master, settings=conf)
    try:
        yield spark
    except PySparkException as error:
        raise error_of(error) or JobFailed(f"the Spark job failed: {_reason(error)}") from error
    finally:
        spark.stop()


def submitted(command: click.Command) -> None:
    """The entry of a spark-submit application."""
    try:
        sys.exit(command.main(standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except PipelineError as error:
        click.echo(f"lbg: error: {error}", err=True)
        sys.exit(1)


def _reason(error: PySparkException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # The last line of a worker's traceback says what; the first of any other error does.
    return lines[-1] if lines and lines[0].endswith("Traceback (most recent call last):") else lines[0]
