"""The commands of `lbg group`."""

from __future__ import annotations

import click

from lbgroup.group.change import (
    adopt,
    assign,
    close,
    delete,
    pause,
    publisher,
    repartition,
    resume,
    rotate,
    skip,
)
from lbgroup.group.create import create
from lbgroup.group.messages import key, peek
from lbgroup.group.show import list_, show


@click.group(no_args_is_help=True)
def group() -> None:
    """Create, show, list and delete groups on a broker, find the messages of a key, peek at messages and skip poisoned
    ones, pause and resume groups, rotate their passwords, change how many queues they have and who serves them, adopt
    them from another owner, and close their sessions."""


for command in (
    create,
    show,
    list_,
    peek,
    key,
    skip,
    pause,
    resume,
    rotate,
    publisher,
    repartition,
    assign,
    adopt,
    close,
    delete,
):
    group.add_command(command)
