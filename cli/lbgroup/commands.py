"""Commands that are imported when they are called, and their failures as one line."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem

from lbg_core.redaction import redacted


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Location of a command (`package.module:attribute`), and its line in the list of help."""

    target: str
    summary: str

    def load(self) -> click.Command:
        module, _, attribute = self.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


@contextmanager
def exporting_traces(service: str) -> Iterator[None]:
    """For the length of the block: traces are exported if OTEL_… variables ask for it. Raises UsageError."""
    from lbg_core.tracing import TracingError, exporting

    try:
        with exporting(service):
            yield
    except TracingError as error:
        raise click.UsageError(str(error)) from error


class LazyGroup(click.Group):
    """A click group whose commands are named in a table and imported one at a time."""

    def __init__(self, *args: Any, table: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._table.get(cmd_name)
        return entry.load() if entry else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names from the table: nothing is imported for them."""
        found = [
            CompletionItem(name, help=entry.summary)
            for name, entry in self._table.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self._table.items()])


EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNROUTED = 3
"""`lbg publish`: the broker confirmed everything, and no queue took some of it, or that is not known."""
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class CliError(Exception):
    """A failure whose text is already the line to show."""


def error_line(error: BaseException) -> str:
    """Line that describes `error` to a person, without a password."""
    from lbg_core.admin.errors import plain_reason
    from lbg_core.client.errors import NoListener
    from lbg_core.peers import listen_reason

    text = " ".join(redacted(plain_reason(error)).split())
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        text = f"{listen_reason(error)}{where}"
    if any(isinstance(one, NoListener) for one in _causes(error)):
        text = f"{text}; `lbg broker serve` starts a broker, and --broker or $LBG_BROKER is the address of another"
    if not _is_ours(error):
        text = f"internal error: {type(error).__name__}: {text} (LBG_DEBUG=1 shows where)"
    return f"lbg: error: {text or type(error).__name__}"


def run(command: click.Command, args: list[str] | None = None, *, name: str = "lbg") -> int:
    """Run `command` and turn its errors into an exit status and a line on standard error. `name` stands in its help."""
    try:
        status = command.main(args, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.UsageError as error:
        if error.ctx is not None:
            click.echo(error.ctx.get_usage(), err=True)
        click.echo(f"lbg: error: {redacted(error.format_message())}", err=True)
        return EXIT_USAGE
    except click.ClickException as error:
        click.echo(f"lbg: error: {redacted(error.format_message())}", err=True)
        return EXIT_FAILED
    except (click.Abort, KeyboardInterrupt):
        click.echo("lbg: interrupted", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe went away (`lbg … | head`): quiet, and no second error at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as error:
        if os.environ.get("LBG_DEBUG") == "1":
            traceback.print_exc()
        click.echo(error_line(error), err=True)
        return EXIT_USAGE if _is_wrong_argument(error) else EXIT_FAILED
    return status if isinstance(status, int) else 0


def _is_wrong_argument(error: Exception) -> bool:
    """True if it is of a group's attribute or an address, which only arguments give: what a record or an input has is
    another error's cause."""
    from lbg_core.client.errors import SettingsError
    from lbg_core.group import SpecError

    return isinstance(error, SpecError | SettingsError)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _is_ours(error: BaseException) -> bool:
    """True if the error was written for a person: ours, the system's, or a stated failure of a command."""
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in {
        "lbgroup",
        "lbg_core",
        "lbg_broker",
        "lbg_operator",
        "lbg_console",
        "lbg_pipeline",
        "lbg_sidecar",
    }
