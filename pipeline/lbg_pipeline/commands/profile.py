"""`lbg pipeline profile`, and a spark-submit application."""

from __future__ import annotations

import time

import click

from lbg_core.command_output import echo_json
from lbg_pipeline.commands.options import journal_options, output_options, submitted


@click.command(
    epilog="Example: lbg pipeline profile --journal journal/ --out profile/",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@journal_options
@output_options
def profile(
    journals: tuple[str, ...],
    out: str,
    master: str | None,
    conf: dict[str, str],
    groups: tuple[str, ...],
    as_json: bool,
) -> None:
    """Profile the load: rates, sizes, latencies, skew, handoffs and the utilisation of members.

    Writes report.html, a page in one file; report.json; and the Parquet tables rates, demand, keys, latencies, skew,
    handoffs, utilisation and broken (docs/pipeline.md).
    """
    from lbg_pipeline.profile.job import Request, run
    from lbg_pipeline.spark.jobs import shown_progress
    from lbg_pipeline.spark.session import spark_job

    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    request = Request(
        journals=journals,
        groups=groups,
        made_by=f"Made by lbg pipeline profile at {made}",
    )
    with spark_job("profile", master, conf) as spark, shown_progress(spark) as progress:
        outcome = run(spark, request, out, on_phase=progress.begin)
    if as_json:
        echo_json(outcome.document)
    else:
        click.echo("\n".join(outcome.lines))


if __name__ == "__main__":
    submitted(profile)
