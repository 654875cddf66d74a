"""`lbg console`: the groups of a broker in a browser."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import click

from lbgroup.commands import CliError
from lbgroup.group.create import with_admin
from lbgroup.options import broker_options
from lbgroup.runner import run

if TYPE_CHECKING:
    from lbg_broker import Address
    from lbg_core.admin.live import LiveAdmin
    from lbg_core.client import BrokerAddress

DEFAULT_LISTEN = "127.0.0.1:8780"


async def _require_group(name: str, admin: LiveAdmin) -> None:
    """Raises GroupNotFound, AdminError, and SpecError for what cannot be a group's name."""
    from lbg_core.admin.errors import GroupNotFound
    from lbg_core.group import Names

    Names(name)
    if (await admin.observe(name)).is_empty:
        raise GroupNotFound(name)


def _listen(_context: click.Context, _option: click.Parameter, text: str) -> Address:
    from lbg_broker import Address

    try:
        return Address.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _url(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    from lbg_console.application import public_url

    try:
        return None if text is None else public_url(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}") from None


@click.command(epilog="Example: lbg console")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=DEFAULT_LISTEN,
    show_default=True,
    envvar="LBG_CONSOLE_LISTEN",
    show_envvar=True,
    callback=_listen,
    help="Where browsers reach it.",
)
@click.option(
    "--url",
    metavar="URL",
    envvar="LBG_CONSOLE_URL",
    show_envvar=True,
    callback=_url,
    help="Its public address, http[s]://host[:port], behind a proxy or an Ingress.",
)
@click.option(
    "--read-only",
    "is_read_only",
    is_flag=True,
    envvar="LBG_CONSOLE_READ_ONLY",
    show_envvar=True,
    help="Serve no acts: nothing can be changed, whoever signs in.",
)
@broker_options(login=True, management=True, waits_for_files=True)
def console(
    names: tuple[str, ...],
    listen: Address,
    url: str | None,
    is_read_only: bool,
    address: BrokerAddress,
    *,
    signs_in: bool = False,
) -> None:
    """Show all groups of a broker in a browser, or groups NAME: who serves each queue, live and in the last hour.

    Whoever looks signs in with a user of the broker, and sees and does what this user may. The groups are observed
    once, with the login of this command; for all groups it takes an administrator's. It serves HTTP: for other machines
    put a proxy with TLS before it, and give its address as --url.
    """
    from lbg_console.application import Console, ConsoleSettings
    from lbg_core.admin.errors import AdminError
    from lbg_core.admin.management import ManagementSettings
    from lbg_core.client import ClientError
    from lbg_core.peers import listen_reason, raise_descriptor_limit

    try:
        for management in address.management_urls or ():
            ManagementSettings.parse(management)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    settings = ConsoleSettings(address, listen.host, listen.port, names, url, is_read_only, signs_in)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    raise_descriptor_limit()

    with suppress(ClientError, AdminError):  # the console reports these, and tries again
        for name in names:
            with_admin(address, partial(_require_group, name), with_management=False)

    async def serve() -> None:
        try:
            async with Console(settings) as serving:
                where = serving.sign_in_url if signs_in else f"{url or serving.url}/"
                click.echo(f"the console is at {where} until Ctrl-C", err=True)
                await serving.wait()
        except OSError as error:
            raise CliError(f"cannot listen on {listen}: {listen_reason(error)}") from error

    run(serve())
