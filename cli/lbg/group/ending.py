"""`lbg group close` and `delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lbg.group.admin import with_admin
from lbg.options import broker_options

if TYPE_CHECKING:
    from lbg_broker.client import BrokerAddress


@click.command(epilog="Example: lbg group close orders --session orders-2")
@click.argument("name")
@click.option("--session", metavar="NAME", help="End this session only: it gets no new messages.")
@broker_options(login=True, management=True)
def close(name: str, address: BrokerAddress, session: str | None) -> None:
    """Close group NAME, of mode Sessions: publishers are refused, what waits is delivered, and every session that has
    got it all gets End-of-Session.

    Says what is left. A session without a consumer keeps its messages until a consumer of that name comes back.
    """
    from lbg.group.leftover import leftover_lines
    from lbg_broker.provisioning.provisioner import close_group

    left = with_admin(address, lambda admin: close_group(admin, name, session=session))
    click.echo("\n".join(leftover_lines(left, session=session)))


@click.command(epilog="Example: lbg group delete orders")
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete with the messages and consumers that remain.")
@click.option("--no-user", is_flag=True, help="Leave the group's user; then no management API is needed.")
@broker_options(login=True, management=True)
def delete(name: str, address: BrokerAddress, force: bool, no_user: bool) -> None:
    """Delete group NAME with all that belongs to it, however much of it is left.

    Refused while messages or consumers remain, unless --force.
    """
    from lbg_broker.provisioning.provisioner import delete_group

    actions = with_admin(
        address,
        lambda admin: delete_group(admin, name, force=force, with_user=not no_user),
        with_management=not no_user or bool(address.management_urls),
    )
    click.echo(f"group {name} deleted ({len(actions)} objects)")
