"""`lbg pipeline`: the jobs on journals, which need PySpark and a JRE."""

from __future__ import annotations

import importlib.util

import click

from lbgroup.commands import CliError, LazyCommand, LazyGroup

COMMANDS: dict[str, LazyCommand] = {
    "validate": LazyCommand(
        "lbg_pipeline.commands.validate:validate", "Prove that nothing was lost or out of order."
    ),
    "profile": LazyCommand(
        "lbg_pipeline.commands.profile:profile", "Report where the load is, as tables and as a page."
    ),
    "plan": LazyCommand(
        "lbg_pipeline.commands.plan:plan", "Compute how many hashes, queues and members a group needs."
    ),
    "forecast": LazyCommand(
        "lbg_pipeline.commands.forecast:forecast", "Forecast demand, and the replicas that it takes."
    ),
}


class _NeedsSpark(LazyGroup):
    """A group that needs PySpark: half a gigabyte, which members and operators do without."""

    def invoke(self, ctx: click.Context) -> object:
        if importlib.util.find_spec("pyspark") is None:
            raise CliError(
                "lbg pipeline needs PySpark: pip install 'lbgroup[pipeline]', and a JRE of Java 17 or 21"
            )
        return super().invoke(ctx)


@click.group(cls=_NeedsSpark, table=COMMANDS, no_args_is_help=True)
def pipeline() -> None:
    """Prove order, see skew, plan counts and forecast demand, from the journals of publishers and members.

    Each is also a spark-submit application: docs/pipeline.md.
    """
