"""`lbg group peek` and `key`: messages where they are, and none is taken."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from lbg_core.command_output import echo_json, output_option
from lbg_core.counted_nouns import counted
from lbg_core.group.held_messages import PeekedMessage
from lbg_core.peers import printable
from lbgroup.commands import CliError
from lbgroup.group.create import with_admin
from lbgroup.options import body_bytes_option, body_text, broker_options

if TYPE_CHECKING:
    from lbg_core.client import BrokerAddress


@click.command(epilog="Example: lbg group peek orders --queue 3")
@click.argument("name")
@click.option("--queue", type=click.IntRange(min=0), metavar="N", help="Only messages of this queue.")
@click.option("--id", "id_", metavar="ID", help="Only the message of this id.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=10, show_default=True, metavar="N", help="At most N."
)
@body_bytes_option
@output_option("one object.", has_flag=True)
@broker_options(login=True, management=True)
def peek(
    name: str,
    address: BrokerAddress,
    queue: int | None,
    id_: str | None,
    limit: int,
    body_bytes: int,
    as_json: bool,
) -> None:
    """Show messages of group NAME, in order per queue, and take none.

    Each message stays in its place, and its redelivered flag too. Members answer with the messages that they hold:
    running, waiting, retrying or poisoned. The embedded broker shows the next ones, which are ready there, as far as
    they are in its memory. RabbitMQ shows none of them.
    """
    from lbg_core.admin.member_requests import Wanted, peek_group, peeked_json, unread_lines

    wanted = Wanted(queue, id_)
    found = with_admin(
        address, lambda admin: peek_group(admin, name, wanted, limit=limit, body_bytes=body_bytes)
    )
    if as_json:
        echo_json(found.to_json())
    else:
        now_us = time.time_ns() // 1000
        for message in found.messages:
            click.echo(_message_line(message, now_us))
            click.echo(f"  {body_text(peeked_json(message, now_us))}")
        click.echo(f"{counted(len(found.messages), 'message')} of group {name} shown", err=True)
        for line in unread_lines(found):
            click.echo(f"! {line}", err=True)
    if id_ is not None and not found.messages:
        raise CliError(
            f"no member of group {name} holds message {id_}, and it is not among those that the broker shows; "
            f"`lbg dead list {name}` has the dead letters"
        )


def _message_line(message: PeekedMessage, now_us: int) -> str:
    from lbg_core.admin.observations import age_text

    age_s = message.age_s(now_us)
    fields = {
        "key": message.key,
        "queue": message.queue,
        "member": message.member,
        "attempts": message.attempts,
        "age": None if age_s is None else age_text(age_s),
    }
    columns = "  ".join(f"{name} {'-' if value is None else value}" for name, value in fields.items())
    redelivered = "  redelivered" if message.redelivered else ""
    reason = f"  {' '.join(message.reason.split())}" if message.reason else ""
    return printable(f"{message.id}  {message.state}  {columns}{redelivered}{reason}", max_chars=None)


@click.command(epilog="Example: lbg group key orders N14228")
@click.argument("name")
@click.argument("key")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    metavar="N",
    help="Show at most N messages that are in one place.",
)
@click.option("--bodies", is_flag=True, help="Show each message that waits, with its body.")
@body_bytes_option
@output_option("one object.", has_flag=True)
@broker_options(login=True, management=True)
def key(
    name: str, key: str, address: BrokerAddress, limit: int, bodies: bool, body_bytes: int, as_json: bool
) -> None:
    """Show the fate of a KEY of group NAME: what became of its messages, and where the others are.

    A line for each message at each member, in time order: those that the members finished lately, and those that are
    in the key's queues, at members, parked, dead letters or unrouted now. Nothing is taken. What could not be read to
    its end is reported with the cause.
    """
    from lbg_core.admin.key_fate import find_key, places_text
    from lbg_core.admin.key_lane import lane_lines
    from lbg_core.admin.member_requests import peeked_json

    found = with_admin(address, lambda admin: find_key(admin, name, key, limit=limit, body_bytes=body_bytes))
    if as_json:
        echo_json(found.to_json())
        return
    now_us = time.time_ns() // 1000
    click.echo(f"key {printable(key)} of group {name}: hash {found.hash_}, queue {found.queue}")
    click.echo("\n".join(lane_lines(found.lane, now_us)))
    click.echo(printable(places_text(found), max_chars=None))
    for message in (one for place in found.places for one in place.messages if bodies):
        click.echo(_message_line(message, now_us))
        click.echo(f"  {body_text(peeked_json(message, now_us))}")
