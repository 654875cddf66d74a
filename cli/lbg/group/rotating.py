"""`lbg group rotate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lbg.group.admin import with_admin
from lbg.group.passwords import given_password, kept_secret, password_options, tell_password
from lbg.options import broker_options

if TYPE_CHECKING:
    from lbg_broker.client import BrokerAddress


@click.command(epilog="Example: lbg group rotate orders --client-password-file /run/secrets/orders/password")
@click.argument("name")
@click.option(
    "--client-username",
    metavar="NAME",
    help="Make this the group's user; the one before is still let in. By default the user stays.",
)
@password_options
@click.option("--finish", is_flag=True, help="Delete the users before; refused while they have connections.")
@click.option(
    "--force", is_flag=True, help="With --finish: also with connections, which the broker then closes."
)
@broker_options(login=True, management=True)
def rotate(
    name: str,
    address: BrokerAddress,
    client_username: str | None,
    client_password_file: Path | None,
    write_password: Path | None,
    finish: bool,
    force: bool,
) -> None:
    """Give the user of group NAME a new password, or the group a new user, while members stay.

    Nobody is disconnected by it. Who logs in with --password-file reads the new password when it connects again,
    and until it is there tries again.
    """
    from lbg_broker.provisioning.provisioner import finish_rotation, rotate_user

    if finish and (client_username or client_password_file or write_password):
        raise click.UsageError("--finish goes without a new user or password")
    if finish:
        deleted = with_admin(address, lambda admin: finish_rotation(admin, name, force=force))
        click.echo("\n".join(map(str, deleted)) or f"group {name} has one user, nothing to do")
        return
    password = given_password(client_password_file)
    with kept_secret(write_password if password is None else None) as secret:
        rotated = with_admin(
            address, lambda admin: rotate_user(admin, name, username=client_username, password=password)
        )
        click.echo("\n".join(map(str, rotated.changes)))
        if rotated.password is not None:
            tell_password(rotated.username, rotated.password, secret)
