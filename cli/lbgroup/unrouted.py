"""`lbg unrouted`: list, replay and discard the messages of a group that no queue took."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lbg_core.command_output import output_option
from lbgroup.commands import CliError
from lbgroup.dead_letters import (
    AS_JSON,
    UNROUTED,
    bodies_option,
    discard_selected,
    limit_option,
    print_listing,
    reported,
    save_option,
    with_queue,
    yes_option,
)
from lbgroup.options import body_bytes_option, broker_options

if TYPE_CHECKING:
    from lbg_core.client import BrokerAddress


@click.group(no_args_is_help=True, epilog="Example: lbg unrouted replay orders")
def unrouted() -> None:
    """List, replay and discard the messages of a group that no queue took.

    The broker confirms a message whose queue or binding is missing, and puts it into lbg.GROUP.unrouted. Needs a user
    who may read that queue: the group's own may not.
    """


@unrouted.command(name="list", epilog="Example: lbg unrouted list orders")
@click.argument("group")
@limit_option
@bodies_option
@body_bytes_option
@output_option("one object: group, total and letters.", has_flag=True)
@broker_options(login=True)
def list_(
    group: str, address: BrokerAddress, limit: int, bodies: bool, body_bytes: int, as_json: bool
) -> None:
    """List the unrouted messages of GROUP, oldest first, and leave them there, as `lbg dead list` does."""
    from lbg_core.admin.dead_letters import Selection

    excerpt_bytes = body_bytes if bodies else None
    print_listing(
        UNROUTED, address, group, Selection(), limit=limit, body_bytes=excerpt_bytes, as_json=as_json
    )


@unrouted.command(epilog="Example: lbg unrouted replay orders")
@click.argument("group")
@AS_JSON
@broker_options(login=True)
def replay(group: str, address: BrokerAddress, as_json: bool) -> None:
    """Publish the unrouted messages of GROUP to it again, for each publisher in the order of their numbers.

    Run `lbg group create` first if a queue is missing. Each message is deleted once its queue has confirmed it, and has
    its former identity: members process it, and drop what a killed replay published twice. The first that is refused
    ends the command. Messages of another prefix or hash count stay.
    """
    from lbg_core.admin.dead_letters import ReplayResult, replay_unrouted

    done = ReplayResult()
    with reported(UNROUTED, done, group, "replayed", as_json=as_json):
        with_queue(UNROUTED, address, group, lambda queue: replay_unrouted(queue, done))
    if done.unroutable:
        raise CliError(
            f"{done.unroutable:,} more have a routing key that is not of group {group}: their publisher uses another "
            f"prefix or hash count; `lbg unrouted discard {group} --save FILE` removes them"
        )


@unrouted.command(epilog="Example: lbg unrouted discard orders --save foreign.jsonl")
@click.argument("group")
@save_option
@yes_option
@AS_JSON
@broker_options(login=True)
def discard(group: str, address: BrokerAddress, save: Path | None, yes: bool, as_json: bool) -> None:
    """Delete the unrouted messages of GROUP."""
    from lbg_core.admin.dead_letters import Selection

    discard_selected(UNROUTED, address, group, Selection(), save=save, yes=yes, as_json=as_json)
