"""`lbg pipeline plan`, and a spark-submit application."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lbg_core.command_output import echo_json
from lbg_core.group import ATTRIBUTES, HASH_FUNCTIONS
from lbg_core.group.spec import HASH_COUNT_MAX, QUEUE_COUNT_MAX
from lbg_pipeline.commands.options import delay, journal_option, output_options, submitted

_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


def _counts(most: int) -> Callable[[click.Context, click.Parameter, str | None], tuple[int, ...] | None]:
    """Reads numbers and ranges with commas between them."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
        counts: set[int] = set()
        for word in [] if value is None else value.split(","):
            match = _RANGE.fullmatch(word.strip())
            first = int(match[1]) if match else 0
            last = int(match[2] or match[1]) if match else 0
            if not 1 <= first <= last <= most:
                message = f"{word!r} is neither a number nor a range from 1 to {most}: give 4,8,16 or 4-16"
                raise click.BadParameter(message, ctx, param)
            counts.update(range(first, last + 1))
        return tuple(sorted(counts)) or None

    return read


@click.command(
    epilog="Example: lbg pipeline plan --journal journal/ --manifest group.yaml --growth 1.5 --out plan/",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@journal_option()
@click.option(
    "--group",
    metavar="NAME",
    help="Name of the group on the broker; required if the journals have several groups.",
)
@click.option(
    "--manifest",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The current LoadBalancedGroup (kubectl get lbg NAME -o yaml), to compare with and to patch.",
)
@click.option(
    "--growth",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Factor by which to multiply the demand of the journals.",
)
@click.option(
    "--target-utilisation",
    "target",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.7,
    show_default=True,
    help="Greatest utilisation of a member at the peak.",
)
@click.option(
    "--target-delay",
    "target_delay_s",
    type=delay,
    metavar="SPAN",
    help="Time that a new message may wait; by default the manifest's targetDelay, or 10s.",
)
@click.option(
    "--hash-counts",
    callback=_counts(HASH_COUNT_MAX),
    metavar="N,N-M",
    help="Hash counts to try; by default 128 to 2048 and the group's own.",
)
@click.option(
    "--queue-counts",
    callback=_counts(QUEUE_COUNT_MAX),
    metavar="N,N-M",
    help="Queue counts to try; by default 1, 2, 3, 4, 6, 8, 12 …",
)
@click.option("--max-replicas", type=click.IntRange(1, 4096), help="Greatest number of members.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 65535),
    help="Concurrent calls of the application per member; by default the manifest's, or 16.",
)
@click.option(
    "--function",
    type=click.Choice(list(HASH_FUNCTIONS)),
    help="Hash function; by default the group's own.",
)
@click.option(
    "--assignment",
    type=click.Choice(ATTRIBUTES["assignment"].choices),
    help="By default the manifest's, or that of a new group.",
)
@click.option(
    "--service-time",
    type=click.FloatRange(0, min_open=True),
    metavar="MS",
    help="Time that the application needs for a message, instead of the journals' mean.",
)
@output_options
def plan(
    journals: tuple[str, ...],
    out: str,
    master: str | None,
    conf: dict[str, str],
    group: str | None,
    manifest: Path | None,
    service_time: float | None,
    as_json: bool,
    **wished: Any,
) -> None:
    """Plan the number of hashes, queues and members of a group.

    Simulates candidates with the assignment that members use, on the keys, rates and service times of the journals, and
    recommends the fewest members, then the fewest queues, that are not busier than --target-utilisation in the busiest
    minutes, and with which messages wait no longer than --target-delay. Writes patch.yaml (for kubectl patch lbg NAME
    --type merge --patch-file patch.yaml), plan.json, report.html and the Parquet tables candidates and hot_keys.
    """
    from lbg_pipeline.plan.job import Question, answer
    from lbg_pipeline.plan.manifest import read_manifest
    from lbg_pipeline.plan.recommend import Wishes
    from lbg_pipeline.spark.jobs import shown_progress
    from lbg_pipeline.spark.session import spark_job

    question = Question(
        journals=journals,
        group=group,
        declared=None if manifest is None else read_manifest(manifest, group=group),
        service_time_us=None if service_time is None else service_time * 1000,
        wishes=Wishes(
            growth=wished["growth"],
            target=wished["target"],
            target_delay_s=wished["target_delay_s"],
            hash_counts=wished["hash_counts"],
            queue_counts=wished["queue_counts"],
            members_max=wished["max_replicas"],
            concurrency=wished["concurrency"],
            hash_function=wished["function"],
            assignment=wished["assignment"],
        ),
    )
    with spark_job("plan", master, conf) as spark, shown_progress(spark) as progress:
        report = answer(spark, question, out, on_phase=progress.begin)
    if as_json:
        echo_json(report.document)
    else:
        click.echo("\n".join(report.lines))


if __name__ == "__main__":
    submitted(plan)
