"""The commands of `lbg group`."""

from __future__ import annotations

import click

from lbg.group.creating import create
from lbg.group.ending import close, delete
from lbg.group.looking import list_, show
from lbg.group.repartitioning import repartition
from lbg.group.rotating import rotate


@click.group(no_args_is_help=True)
def group() -> None:
    """Create, show, list and delete groups on a broker, rotate their passwords, change how many queues they have,
    and close their sessions."""


for command in (create, show, list_, rotate, repartition, close, delete):
    group.add_command(command)
