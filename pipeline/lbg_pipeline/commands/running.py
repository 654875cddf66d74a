"""What every command does around its job: a session of Spark, and one line for whatever goes wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lbg_pipeline.errors import JobFailed, PipelineError, told_by
from lbg_pipeline.session import spark_session


@contextmanager
def spark_job(name: str, master: str | None, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """`conf` are settings of Spark's. Raises PipelineError for what Spark raises."""
    spark = spark_session(f"lbg {name}", master=master, settings=conf)
    try:
        yield spark
    except PySparkException as error:
        raise told_by(error) or JobFailed(f"Spark gave up: {_reason(error)}") from error
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
