"""How a failure is shown: one line that says what and where, and an exit status; a traceback only on request."""

from __future__ import annotations

import os
import re
import sys
import traceback

import click

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it

_PASSWORD_IN_URL = re.compile(r"(\w+://[^\s:/@]*):[^\s/]*@")


class Failure(Exception):
    """A failure whose text is already the line to show."""


def redacted(text: str) -> str:
    """`text` with the password of every URL in it replaced by `***`."""
    return _PASSWORD_IN_URL.sub(r"\1:***@", text)


def error_line(error: BaseException) -> str:
    """What a person is told of `error`: one line, no password in it."""
    text = " ".join(redacted(str(error)).split())
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        text = f"{error.strerror}{where}"
    if not _is_ours(error):
        text = f"internal error: {type(error).__name__}: {text} (LBG_DEBUG=1 shows where)"
    return f"lbg: error: {text or type(error).__name__}"


def run(command: click.Command, args: list[str] | None = None) -> int:
    """Run `command` and turn whatever it raises into an exit status and a line on standard error."""
    try:
        status = command.main(args, prog_name="lbg", standalone_mode=False)
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
        return EXIT_FAILED
    return status if isinstance(status, int) else 0


def _is_ours(error: BaseException) -> bool:
    """Whether the error was written for a person: ours, the system's, or a stated failure of a command."""
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in {
        "lbg",
        "lbg_broker",
        "lbg_operator",
        "lbg_pipeline",
        "lbg_sidecar",
    }
