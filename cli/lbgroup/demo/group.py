"""Group of the demo: made on its own broker or on another one, and removed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lbg_core.admin import ProvisioningError
from lbg_core.admin.groups import create_group, delete_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.client import BrokerAddress
from lbg_core.group import Engine, GroupSpec
from lbg_core.private_files import open_private
from lbgroup.child_processes import ProcessGroup
from lbgroup.commands import CliError
from lbgroup.options import management_of

START_TIMEOUT_S = 60.0
REMOVE_TIMEOUT_S = 30.0
LEFT_BEHIND = "`lbg group delete {} --force` with the same --broker and --management removes it"


async def start_broker(children: ProcessGroup, directory: Path) -> BrokerAddress:
    """An embedded broker with its data in `directory`. Raises CliError."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    broker = await children.start(
        "broker",
        *("broker", "serve", "--json", "--data-dir", str(directory)),
        *("--listen", "127.0.0.1:0", "--management", "127.0.0.1:0"),
        on_line=lambda line: None if ready.done() else ready.set_result(line),
    )
    ended = asyncio.ensure_future(broker.process.wait())
    await asyncio.wait((ready, ended), timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if not ready.done():
        raise CliError(f"the broker did not start: {broker.last_line()}")
    urls = json.loads(ready.result())
    return BrokerAddress((urls["amqp"],), (urls["management"],))


@dataclass(frozen=True, slots=True)
class DemoGroup:
    """The demo's group on a broker. `login`: the environment of processes that log in as the group's user;
    `warning`: the reason if the group has none, else empty. `where`: the engine and its place, for a title."""

    admin: LiveAdmin
    engine: Engine
    login: Mapping[str, str]
    where: str
    warning: str


@contextlib.asynccontextmanager
async def demo_group(
    address: BrokerAddress, spec: GroupSpec, directory: Path, *, is_own_broker: bool
) -> AsyncIterator[DemoGroup]:
    """The group for the length of the block; it is removed at the end, also after an error, unless it ends with its
    broker. Raises CliError where the group's name is taken, and ProvisioningError.

    Members and the publisher log in as the group's own user, who may touch nothing else; where no user can be made,
    because the management API is not there, as the user of `address`.
    """
    admin = LiveAdmin(address.places(), management_of(address))
    try:
        observed = await admin.observe(spec.name)
        if not observed.is_empty:
            raise CliError(
                f"there is a group {spec.name!r} on this broker already: give the demo another name with --group; if "
                f"a demo that was killed has left it, {LEFT_BEHIND.format(spec.name)}"
            )
        password = None if observed.users is UNKNOWN else secrets.token_urlsafe(16)
        if password is None:
            login, warning = {}, f"no user of its own for the group: {'; '.join(observed.why.values())}"
        else:
            file = directory / "password"
            with os.fdopen(open_private(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as secret:
                secret.write(password)
            login = {"LBG_USERNAME": spec.client_username, "LBG_PASSWORD_FILE": str(file)}
            warning = ""
        await create_group(admin, spec, password=password, with_user=password is not None)
        try:
            place = _place_of(observed.engine, address, is_own_broker=is_own_broker)
            yield DemoGroup(admin, observed.engine, login, place, warning)
        finally:
            if not is_own_broker:
                await _remove(admin, spec.name, with_user=password is not None)
    finally:
        await admin.close()


async def _remove(admin: LiveAdmin, group: str, *, with_user: bool) -> None:
    try:
        async with asyncio.timeout(REMOVE_TIMEOUT_S):
            await delete_group(admin, group, force=True, with_user=with_user)
    except (TimeoutError, ProvisioningError, asyncio.CancelledError) as error:
        reason = str(error) or "it was too slow, or was interrupted"
        left = LEFT_BEHIND.format(group)
        raise CliError(f"the demo's group could not be removed: {reason}; {left}") from error


def _place_of(engine: Engine, address: BrokerAddress, *, is_own_broker: bool) -> str:
    version = ".".join(map(str, engine.version))
    if is_own_broker:
        return f"embedded broker {version}"
    hosts = ", ".join(urlsplit(url).netloc.rpartition("@")[2] for url in address.urls)
    return f"{engine.product if engine.is_rabbitmq else 'embedded broker'} {version} at {hosts}"
