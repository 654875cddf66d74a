"""The options that every job has."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from lbg_pipeline.commands.options import output_options


@click.command()
@output_options
def job(conf: dict[str, str], **_: object) -> None:
    click.echo(conf)


def test_settings_of_spark_are_given_by_name() -> None:
    said = CliRunner().invoke(
        job, ["--out", "o", "--conf", "spark.driver.memory=8g", "--conf", "spark.a=b=c"]
    )
    assert said.output == "{'spark.driver.memory': '8g', 'spark.a': 'b=c'}\n"


@pytest.mark.parametrize("wrong", ["spark.driver.memory", "driver.memory=8g", "spark.=", "spark. x=1"])
def test_what_is_no_setting_of_spark_is_refused(wrong: str) -> None:
    said = CliRunner().invoke(job, ["--out", "o", "--conf", wrong])
    assert said.exit_code == 2
    assert "is not a setting of Spark: give it as spark.driver.memory=8g" in said.output
