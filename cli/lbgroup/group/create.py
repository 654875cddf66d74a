"""`lbg group create`, and the passwords of group users."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from lbg_core.command_output import echo_json, output_option
from lbg_core.counted_nouns import counted
from lbg_core.group import (
    EXCLUSIVE,
    ONE_USER,
    PARTITIONED,
    GroupSpec,
    Names,
    Publishers,
)
from lbg_core.private_files import open_private
from lbgroup.commands import CliError
from lbgroup.options import FILE, broker_options, declared_options, management_of

if TYPE_CHECKING:
    from lbg_core.admin.groups import Created
    from lbg_core.admin.live import LiveAdmin
    from lbg_core.client import BrokerAddress
    from lbgroup import documents


T = TypeVar("T")


def with_admin(
    address: BrokerAddress,
    work: Callable[[LiveAdmin], Awaitable[T]],
    *,
    with_management: bool = True,
) -> T:
    """Run `work` on an admin that is closed afterwards."""
    from lbg_core.admin.live import LiveAdmin

    async def run() -> T:
        uses_management = with_management and address.management_urls is not None
        admin = LiveAdmin(address.places(), management_of(address) if uses_management else None)
        try:
            return await work(admin)
        finally:
            await admin.close()

    return asyncio.run(run())


C = TypeVar("C", bound=Callable[..., Any])


def password_options(command: C) -> C:
    """Options for the source of the password of the group's user and, if it is generated, its destination."""
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


def password_from(file: Path | None) -> str | None:
    """Password of the members' user, if one is given."""
    return os.environ.get("LBG_CLIENT_PASSWORD") or None if file is None else password_in(file)


def password_in(file: Path, *, option: str = "--client-password-file") -> str:
    from lbg_core.client.settings import first_line

    try:
        return first_line(file)
    except ValueError as error:
        raise CliError(f"{option} {error}") from error


@contextlib.contextmanager
def secret_file(file: Path | None) -> Iterator[Path | None]:
    """Make the file first: a password that cannot be stored must not be set. It is removed if nothing is written."""
    if file is not None:
        os.close(open_private(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    try:
        yield file
    finally:
        if file is not None and not file.stat().st_size:
            file.unlink()


def publisher_password_options(command: C) -> C:
    """Options for the source of the password of the publishers' user and, if it is generated, its destination."""
    for option in (
        click.option(
            "--write-publisher-password",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Write a generated password of the publishers' user to this new file (mode 600) and do not print it.",
        ),
        click.option(
            "--publisher-password-file",
            type=FILE,
            help="The password of the publishers' user is this file's first line. By default one is generated.",
        ),
    ):
        command = option(command)
    return command


SHARED, ADDITIONAL, EXCLUSIVE_USER = "Shared", "Additional", "Exclusive"


def publishers_for(group: str, kind: str) -> Publishers:
    return ONE_USER if kind == SHARED else Publishers(Names(group).publisher_user, kind == ADDITIONAL)


def handed_over(user: str, password: str | None, file: Path | None) -> documents.Password:
    """A generated password for the output, or in the file. None: nothing was generated."""
    if password is None:
        return {}
    if file is None:
        return {"username": user, "password": password}
    file.write_text(password + "\n")
    return {"username": user, "password_file": str(file)}


def password_lines(handed: documents.Password, of: str = "") -> Iterator[str]:
    if "password_file" in handed:
        yield f"user {handed['username']}{of}: its password is in {handed['password_file']}"
    elif "password" in handed:
        yield f"user {handed['username']}{of}: password {handed['password']} (shown this once)"


@click.command(epilog="Example: lbg group create orders --hash-count 100 --queue-count 4 --queue-size-mb 100")
@click.argument("name")
@declared_options(GroupSpec, without=("name",))
@click.option(
    "--publisher-user",
    type=click.Choice((SHARED, ADDITIONAL, EXCLUSIVE_USER)),
    default=ADDITIONAL,
    show_default=True,
    help="User of a new group's publishers. Additional: NAME.publisher, who can publish and nothing else; members may "
    "publish too. Exclusive: members may not. Shared: publishers log in as members.",
)
@password_options
@publisher_password_options
@click.option("--no-user", is_flag=True, help="Create no users; then no management API is needed.")
@output_option("one object: what was done, and the attributes.")
@broker_options(login=True, management=True)
def create(
    name: str,
    address: BrokerAddress,
    client_password_file: Path | None,
    write_password: Path | None,
    publisher_user: str,
    publisher_password_file: Path | None,
    write_publisher_password: Path | None,
    no_user: bool,
    as_json: bool,
    **attributes: Any,
) -> None:
    """Create group NAME: its exchange, queues, bindings, users and record; all of it or nothing.

    HASH COUNT >= QUEUE COUNT >= MAX CLIENTS. A group that exists with the same attributes is checked and
    repaired; one with other attributes is refused, with the difference, and one of another owner without. What an
    interrupted create left is finished, or deleted first where it had other attributes.
    """
    from lbg_core.admin.groups import create_group

    spec = GroupSpec(name, **attributes)
    password = None if no_user else password_from(client_password_file)
    publisher_password = None
    if publisher_password_file is not None:
        publisher_password = password_in(publisher_password_file, option="--publisher-password-file")

    async def run(admin: LiveAdmin) -> Created:
        return await create_group(
            admin,
            spec,
            password=password,
            with_user=not no_user,
            publishers=publishers_for(name, publisher_user),
            publisher_password=publisher_password,
        )

    with (
        secret_file(write_password if password is None else None) as secret,
        secret_file(write_publisher_password if publisher_password is None else None) as publisher_secret,
    ):
        created = with_admin(address, run, with_management=not no_user or bool(address.management_urls))
        handed = handed_over(spec.client_username, created.password, secret)
        of_publishers = handed_over(created.publishers.username, created.publisher_password, publisher_secret)
        if as_json:
            echo_json(_document(created, handed, of_publishers))
            return
        _print_created(created)
        for line in (
            *password_lines(handed, " of members"),
            *password_lines(of_publishers, " of publishers"),
        ):
            click.echo(line)


def _parts(spec: GroupSpec) -> str:
    parts = {
        EXCLUSIVE: counted(spec.queue_count, "queue"),
        PARTITIONED: f"mode Partitioned, {counted(spec.queue_count, 'partition')}",
    }
    return parts.get(spec.mode, f"mode {spec.mode}")


def _document(
    created: Created, handed: documents.Password, of_publishers: documents.Password
) -> documents.Created:
    publisher: documents.PublisherPassword = {}
    if "username" in of_publishers:
        publisher["publisher_username"] = of_publishers["username"]
    if "password" in of_publishers:
        publisher["publisher_password"] = of_publishers["password"]
    if "password_file" in of_publishers:
        publisher["publisher_password_file"] = of_publishers["password_file"]
    return {
        "group": created.spec.name,
        "action": _action(created),
        "attributes": created.spec.attributes(),
        "changes": list(map(str, created.changes)),
        "undone": list(created.undone),
        "unchecked": list(created.unchecked),
        **handed,
        **publisher,
    }


def _action(created: Created) -> Literal["created", "completed", "repaired", "unchanged"]:
    if created.was_begun:
        return "completed"
    if not created.was_there:
        return "created"
    return "repaired" if created.changes else "unchanged"


def _print_created(created: Created) -> None:
    spec = created.spec
    attributes = f"{_parts(spec)}, {counted(spec.hash_count, 'hash', 'hashes')}, prefix {spec.hash_prefix!r}"
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
    for name in created.unchecked:
        click.echo(f"! not checked: {name}", err=True)
