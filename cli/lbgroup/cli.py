"""The `lbg` command: its subcommands, each imported when it is called."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import click

from lbgroup.commands import CliError, LazyCommand, LazyGroup

COMMANDS = {
    "demo": LazyCommand(
        "lbgroup.demo.command:demo", "Play a group's life: joins, crashes, scaling, and the proof."
    ),
    "broker": LazyCommand("lbgroup.broker:broker", "Run the embedded broker."),
    "group": LazyCommand("lbgroup.group:group", "Create, show, list and delete groups."),
    "top": LazyCommand("lbgroup.top:top", "Watch groups: rates, lag, members, problems."),
    "console": LazyCommand("lbgroup.console:console", "Show groups in a browser, live."),
    "publish": LazyCommand(
        "lbgroup.publish:publish", "Publish a file to a group, in order and without loss."
    ),
    "consume": LazyCommand("lbgroup.consume:consume", "Join a group as a member."),
    "sidecar": LazyCommand(
        "lbgroup.sidecar:sidecar", "Run a member beside an application, in a container of its own."
    ),
    "drain": LazyCommand("lbgroup.sidecar:drain", "Make the sidecar hand over and leave, as a preStop hook."),
    "operator": LazyCommand("lbgroup.operator:operator", "Run the Kubernetes operator."),
    "dead": LazyCommand("lbgroup.dead_letters:dead", "List, replay and discard dead letters."),
    "unrouted": LazyCommand(
        "lbgroup.unrouted:unrouted", "List, replay and discard messages that no queue took."
    ),
    "park": LazyCommand("lbgroup.parked:park", "List, release and discard parked keys."),
    "validate": LazyCommand(
        "lbgroup.validate.command:validate", "Check order, loss and moves of what a group delivers."
    ),
    "completion": LazyCommand("lbgroup.cli:completion", "Complete commands in bash, zsh or fish."),
    "pipeline": LazyCommand("lbgroup.cli:pipeline", "Validate, profile, plan and forecast, from journals."),
}


@click.command(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: lbg demo    (each command has its own --help, with an example)",
)
@click.version_option(package_name="lbgroup", message="lbg %(version)s")
def cli() -> None:
    """Load-balanced groups: ordered, sticky, elastic consumption of a message stream.

    The broker's address is --broker or $LBG_BROKER, by default amqp://guest:guest@127.0.0.1:5672/.
    LBG_DEBUG=1 shows tracebacks.
    """


PIPELINE_COMMANDS: dict[str, LazyCommand] = {
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
            from lbg_core.extras import install_command

            raise CliError(
                f"lbg pipeline needs PySpark, and a JRE of Java 17 or 21: run {install_command('pipeline')}"
            )
        return super().invoke(ctx)


@click.group(cls=_NeedsSpark, table=PIPELINE_COMMANDS, no_args_is_help=True)
def pipeline() -> None:
    """Prove order, see skew, plan counts and forecast demand, from the journals of publishers and members.

    Each is also a spark-submit application: docs/pipeline.md.
    """


SHELLS = ("bash", "zsh", "fish")


def _data_home() -> Path:
    """XDG Base Directory Specification."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")


def _completion_file(shell: str) -> Path:
    """File in which the shell looks for the completion of `lbg`; zsh only if the directory is in its `fpath`."""
    if shell == "bash":
        return _data_home() / "bash-completion/completions/lbg"
    if shell == "zsh":
        return _data_home() / "zsh/site-functions/_lbg"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "fish/completions/lbg.fish"


@click.command(epilog="Example: lbg completion bash --install")
@click.argument("shell", type=click.Choice(SHELLS))
@click.option(
    "--install", is_flag=True, help="Write it where the shell looks for it, instead of printing it."
)
def completion(shell: str, install: bool) -> None:
    """Print the completion of `lbg` for a SHELL, or install it for this user.

    bash loads it by the package bash-completion, fish by itself. In zsh a line of ~/.zshrc has to name the directory:
    --install prints it.
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    source = made(cli, {}, "lbg", "_LBG_COMPLETE").source()
    if not install:
        click.echo(source)
        return
    file = _completion_file(shell)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source + "\n")
    except OSError as error:
        raise CliError(f"cannot write {file}: {error.strerror}") from error
    click.echo(f"{file} written; it applies in new shells", err=True)
    if shell == "zsh":
        click.echo(f"in ~/.zshrc, before compinit: fpath=({file.parent} $fpath)", err=True)
