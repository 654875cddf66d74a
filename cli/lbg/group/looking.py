"""`lbg group show` and `list`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from lbg.group.admin import with_admin
from lbg.options import broker_options

if TYPE_CHECKING:
    from lbg_broker.client import BrokerAddress


@click.command(epilog="Example: lbg group show orders --json | jq .ready")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help='One JSON object; what could not be read is "unknown".')
@broker_options(login=True, management=True)
def show(name: str, address: BrokerAddress, as_json: bool) -> None:
    """Show group NAME: its attributes, its queues with what waits in them, its members and what they serve."""
    from lbg.group.describing import description_lines
    from lbg_broker.provisioning.provisioner import show_group

    shown = with_admin(address, lambda admin: show_group(admin, name))
    if as_json:
        click.echo(json.dumps(shown.to_json(), indent=2))
    else:
        click.echo("\n".join(description_lines(shown)))


@click.command(name="list", epilog="Example: lbg group list")
@click.option("--json", "as_json", is_flag=True, help="A JSON array of what `show --json` gives.")
@broker_options(login=True, management=True)
def list_(address: BrokerAddress, as_json: bool) -> None:
    """List every group of the broker, found by the groups' records."""
    from lbg.group.describing import list_lines
    from lbg_broker.provisioning.provisioner import list_groups

    found = with_admin(address, list_groups)
    if as_json:
        click.echo(json.dumps([one.to_json() for one in found], indent=2))
    elif found:
        click.echo("\n".join(list_lines(found)))
    else:
        click.echo("no groups", err=True)
