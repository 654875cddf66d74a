"""Makes docs/reference/cli.md from the commands' own help: `python docs/cli_reference.py > docs/reference/cli.md`.

A test compares the file with what this makes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from lbgroup.cli import COMMANDS, cli
from lbgroup.kubectl import kubectl_lbg

WIDTH = 100
HEAD = """# The `lbg` command

Made by `python docs/cli_reference.py > docs/reference/cli.md` from what `--help` says.

The exit status is 0, 1 for a failure (one line on standard error says what, where and what to do), 2 for a wrong
command line, 3 if `lbg publish` published all and no queue took some of it, 4 if `lbg pipeline validate` had nothing
to check, and 130 for Ctrl-C. `LBG_BROKER` and `LBG_MANAGEMENT` stand for `--broker` and `--management` of every
command but `lbg demo`; `LBG_DEBUG=1` adds tracebacks. Passwords are never printed, except one that `lbg group create`
or `rotate` has generated itself. With `--output json` a command prints its result as JSON: [output.md](output.md).
"""


def reference() -> str:
    """The whole page."""
    root = click.Context(cli, info_name="lbg", terminal_width=WIDTH, help_option_names=["-h", "--help"])
    pages = [HEAD, _page(cli, root)]
    for name, entry in COMMANDS.items():
        pages += _pages(entry.load(), name, root)
    kubectl = click.Context(click.Group("kubectl"), info_name="kubectl", terminal_width=WIDTH)
    pages += _pages(kubectl_lbg, "lbg", kubectl)
    return "\n".join(pages)


def _pages(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(
        command, info_name=name, parent=parent, terminal_width=WIDTH, **command.context_settings
    )
    yield _page(command, context)
    if isinstance(command, click.Group):
        for inner_name in command.list_commands(context):
            inner = command.get_command(context, inner_name)
            assert inner is not None
            yield from _pages(inner, inner_name, context)


def _page(command: click.Command, context: click.Context) -> str:
    return f"## {context.command_path}\n\n```\n{command.get_help(context).strip()}\n```\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
