"""`lbg group create`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lbg.group.admin import with_admin
from lbg.group.passwords import given_password, kept_secret, password_options, tell_password
from lbg.options import broker_options

if TYPE_CHECKING:
    from lbg_broker.client import BrokerAddress
    from lbg_broker.group import GroupSpec
    from lbg_broker.provisioning.live import LiveAdmin
    from lbg_broker.provisioning.provisioner import Created

DEFAULT_QUEUE_COUNT = "4"


@click.command(epilog="Example: lbg group create orders --hash-count 100 --queue-count 4 --queue-size-mb 100")
@click.argument("name")
@click.option("--hash-prefix", metavar="TEXT", help="First word of every routing key; by default the name.")
@click.option("--hash-count", metavar="N", default="100", show_default=True, help="Shards of the key space.")
@click.option(
    "--queue-count",
    metavar="N",
    show_default="4; 1 in modes MessageGroups and Sessions",
    help="Queues or partitions: the most members at work.",
)
@click.option(
    "--queue-size-mb",
    metavar="MB",
    default="1000",
    show_default=True,
    help="Spool limit of each queue; a full queue refuses.",
)
@click.option(
    "--client-username", metavar="NAME", help="User made for members and publishers; by default the name."
)
@click.option(
    "--hash-function",
    default="crc32",
    show_default=True,
    help="crc32, java, murmur2 or modulo.",
    metavar="NAME",
)
@click.option(
    "--mode",
    default="Exclusive",
    show_default=True,
    metavar="MODE",
    help="How members share: Exclusive, Partitioned, MessageGroups or Sessions (docs/modes.md).",
)
@click.option(
    "--max-clients",
    metavar="N",
    help="Most members; by default the queue count, or in modes MessageGroups and Sessions the hash count.",
)
@click.option(
    "--rebalance-delay",
    "rebalance_delay_s",
    metavar="S",
    show_default="5",
    help="Mode Partitioned: how long the consumers must be the same before partitions move.",
)
@click.option(
    "--max-handoff-time",
    "max_handoff_s",
    metavar="S",
    show_default="3",
    help="Mode Partitioned: how long a partition may stand still to be drained for a move.",
)
@password_options
@click.option("--no-user", is_flag=True, help="Make no user; then no management API is needed.")
@broker_options(login=True, management=True)
def create(
    name: str,
    address: BrokerAddress,
    client_password_file: Path | None,
    write_password: Path | None,
    no_user: bool,
    **attributes: str | None,
) -> None:
    """Create group NAME: its exchange, queues, bindings, user and record; all of it or nothing.

    HASH COUNT >= QUEUE COUNT >= MAX CLIENTS. A group that is there with the same attributes is checked and
    repaired; one with other attributes is refused, with the difference. What an interrupted create left is
    finished, or deleted first where it had other attributes.
    """
    from lbg_broker.group import UNCOUNTED_MODES, GroupSpec
    from lbg_broker.provisioning.provisioner import create_group

    defaults = {"hash_prefix": name, "client_username": name}
    if attributes["mode"] not in UNCOUNTED_MODES:
        defaults["queue_count"] = DEFAULT_QUEUE_COUNT
    given = {field: value for field, value in attributes.items() if value is not None}
    spec = GroupSpec.parse({"name": name, **defaults, **given})
    password = None if no_user else given_password(client_password_file)

    async def run(admin: LiveAdmin) -> Created:
        return await create_group(admin, spec, password=password, with_user=not no_user)

    with kept_secret(write_password if password is None else None) as secret:
        created = with_admin(address, run, with_management=not no_user or bool(address.management_urls))
        _tell_created(created)
        if created.password is not None:
            tell_password(spec.client_username, created.password, secret)


def _parts(spec: GroupSpec) -> str:
    from lbg_broker.group import EXCLUSIVE, PARTITIONED

    parts = {
        EXCLUSIVE: f"{spec.queue_count} queues",
        PARTITIONED: f"mode Partitioned, {spec.queue_count} partitions",
    }
    return parts.get(spec.mode, f"mode {spec.mode}")


def _tell_created(created: Created) -> None:
    spec = created.spec
    attributes = f"{_parts(spec)}, {spec.hash_count} hashes, prefix {spec.hash_prefix!r}"
    if created.undone:
        others = "; ".join(created.undone)
        click.echo(
            f"what an interrupted create of {spec.name} with other attributes made is deleted: {others}"
        )
    if created.was_begun:
        click.echo(f"group {spec.name} created, from where an interrupted create stopped: {attributes}")
    elif not created.was_there:
        click.echo(f"group {spec.name} created: {attributes}")
    elif created.changes:
        click.echo(f"group {spec.name} was there and is repaired: {attributes}")
        for change in created.changes:
            click.echo(f"  {change}")
    else:
        click.echo(f"group {spec.name} is there, nothing to do: {attributes}")
    for what in created.unchecked:
        click.echo(f"! not checked: {what}", err=True)
