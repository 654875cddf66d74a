"""`lbg group`: create, show, list, rotate and delete, as the document's admin does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lbg.failing import Failure
from lbg.options import FILE, broker_options, management_of

if TYPE_CHECKING:
    from lbg_broker.client import BrokerAddress
    from lbg_broker.provisioning.live import LiveAdmin
    from lbg_broker.provisioning.provisioner import Created

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])


def password_options(command: C) -> C:
    """Where the password of the group's user comes from and, if it is generated, goes to."""
    for option in (
        click.option(
            "--write-password",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Write a generated password to this new file (mode 600) and do not print it.",
        ),
        click.option(
            "--client-password-file",
            type=FILE,
            help="The user's password is this file's first line. Otherwise $LBG_CLIENT_PASSWORD, or one is generated.",
        ),
    ):
        command = option(command)
    return command


@click.group(no_args_is_help=True)
def group() -> None:
    """Create, show, list and delete groups on a broker, and rotate their passwords."""


@group.command(epilog="Example: lbg group create orders --hash-count 100 --queue-count 4 --queue-size-mb 100")
@click.argument("name")
@click.option("--hash-prefix", metavar="TEXT", help="First word of every routing key; by default the name.")
@click.option("--hash-count", metavar="N", default="100", show_default=True, help="Shards of the key space.")
@click.option(
    "--queue-count", metavar="N", default="4", show_default=True, help="Queues: the most members at work."
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
@click.option("--mode", default="Exclusive", show_default=True, metavar="MODE", help="How queues are shared.")
@click.option("--max-clients", metavar="N", help="Most members; by default the queue count.")
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
    repaired; one with other attributes is refused, with the difference.
    """
    from lbg_broker.group import GroupSpec
    from lbg_broker.provisioning.provisioner import create_group

    defaults = {"hash_prefix": name, "client_username": name}
    given = {field: value for field, value in attributes.items() if value is not None}
    spec = GroupSpec.parse({"name": name, **defaults, **given})
    password = None if no_user else _password(client_password_file)

    async def run(admin: LiveAdmin) -> Created:
        return await create_group(admin, spec, password=password, with_user=not no_user)

    with _kept(write_password if password is None else None) as secret:
        created = _with_admin(address, run, with_management=not no_user or bool(address.management_urls))
        _tell_created(created)
        if created.password is not None:
            _tell_password(spec.client_username, created.password, secret)


@group.command(epilog="Example: lbg group show orders --json | jq .ready")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help='One JSON object; what could not be read is "unknown".')
@broker_options(login=True, management=True)
def show(name: str, address: BrokerAddress, as_json: bool) -> None:
    """Show group NAME: its attributes, its queues with what waits in them, its members and what they serve."""
    from lbg.describing import description_lines
    from lbg_broker.provisioning.provisioner import show_group

    shown = _with_admin(address, lambda admin: show_group(admin, name))
    if as_json:
        click.echo(json.dumps(shown.to_json(), indent=2))
    else:
        click.echo("\n".join(description_lines(shown)))


@group.command(name="list", epilog="Example: lbg group list")
@click.option("--json", "as_json", is_flag=True, help="A JSON array of what `show --json` gives.")
@broker_options(login=True, management=True)
def list_(address: BrokerAddress, as_json: bool) -> None:
    """List every group of the broker, found by the groups' records."""
    from lbg.describing import list_lines
    from lbg_broker.provisioning.provisioner import list_groups

    found = _with_admin(address, list_groups)
    if as_json:
        click.echo(json.dumps([one.to_json() for one in found], indent=2))
    elif found:
        click.echo("\n".join(list_lines(found)))
    else:
        click.echo("no groups", err=True)


@group.command(epilog="Example: lbg group rotate orders --client-password-file /run/secrets/orders/password")
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
        deleted = _with_admin(address, lambda admin: finish_rotation(admin, name, force=force))
        click.echo("\n".join(map(str, deleted)) or f"group {name} has one user, nothing to do")
        return
    password = _password(client_password_file)
    with _kept(write_password if password is None else None) as secret:
        rotated = _with_admin(
            address, lambda admin: rotate_user(admin, name, username=client_username, password=password)
        )
        click.echo("\n".join(map(str, rotated.changes)))
        if rotated.password is not None:
            _tell_password(rotated.username, rotated.password, secret)


@group.command(epilog="Example: lbg group delete orders")
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete with the messages and consumers that remain.")
@click.option("--no-user", is_flag=True, help="Leave the group's user; then no management API is needed.")
@broker_options(login=True, management=True)
def delete(name: str, address: BrokerAddress, force: bool, no_user: bool) -> None:
    """Delete group NAME with all that belongs to it, however much of it is left.

    Refused while messages or consumers remain, unless --force.
    """
    from lbg_broker.provisioning.provisioner import delete_group

    actions = _with_admin(
        address,
        lambda admin: delete_group(admin, name, force=force, with_user=not no_user),
        with_management=not no_user or bool(address.management_urls),
    )
    click.echo(f"group {name} deleted ({len(actions)} objects)")


def _with_admin(
    address: BrokerAddress,
    work: Callable[[LiveAdmin], Awaitable[T]],
    *,
    with_management: bool = True,
) -> T:
    """Run `work` on an admin that is closed afterwards."""
    from lbg_broker.provisioning.live import LiveAdmin

    async def run() -> T:
        admin = LiveAdmin(address.places(), management_of(address) if with_management else None)
        try:
            return await work(admin)
        finally:
            await admin.close()

    return asyncio.run(run())


def _password(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("LBG_CLIENT_PASSWORD") or None
    from lbg_broker.client.credentials import first_line

    try:
        return first_line(file)
    except ValueError as error:
        raise Failure(f"--client-password-file {error}") from error


@contextlib.contextmanager
def _kept(file: Path | None) -> Iterator[Path | None]:
    """Make the file first: a password that cannot be kept must not be set. It is removed if nothing is written."""
    if file is not None:
        file.touch(mode=0o600, exist_ok=False)
    try:
        yield file
    finally:
        if file is not None and not file.stat().st_size:
            file.unlink()


def _tell_created(created: Created) -> None:
    spec = created.spec
    attributes = f"{spec.queue_count} queues, {spec.hash_count} hashes, prefix {spec.hash_prefix!r}"
    if not created.was_there:
        click.echo(f"group {spec.name} created: {attributes}")
    elif created.changes:
        click.echo(f"group {spec.name} was there and is repaired: {attributes}")
        for change in created.changes:
            click.echo(f"  {change}")
    else:
        click.echo(f"group {spec.name} is there, nothing to do: {attributes}")
    for what in created.unchecked:
        click.echo(f"! not checked: {what}", err=True)


def _tell_password(user: str, password: str, file: Path | None) -> None:
    if file is not None:
        file.write_text(password + "\n")
        click.echo(f"user {user}: its password is in {file}")
    else:
        click.echo(f"user {user}: password {password} (shown this once)")
