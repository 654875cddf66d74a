"""Where a demo plays: a broker of the demo's own or somebody else's, and the demo's group on it."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, urlsplit, urlunsplit

from lbg.demo.children import Children
from lbg.failing import Failure
from lbg.options import management_of
from lbg_broker.client import BrokerAddress
from lbg_broker.group import Engine, GroupSpec
from lbg_broker.provisioning import ProvisioningError
from lbg_broker.provisioning.live import LiveAdmin
from lbg_broker.provisioning.observed import UNKNOWN
from lbg_broker.provisioning.provisioner import create_group, delete_group

START_TIMEOUT_S = 20.0
CLEAR_TIMEOUT_S = 30.0
LEFT_BEHIND = "`lbg group delete {} --force` with the same --broker and --management removes it"


async def start_broker(children: Children, directory: Path) -> BrokerAddress:
    """An embedded broker with its data in `directory`. Raises Failure."""
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
        raise Failure(f"the broker did not start: {broker.last_words()}")
    where = json.loads(ready.result())
    return BrokerAddress(
        (with_login(where["amqp"], "guest", "guest"),), (with_login(where["management"], "guest", "guest"),)
    )


@dataclass(slots=True)
class Stage:
    """The demo's group on a broker for the length of the block; it is removed at the end, whatever the end is.

    Members and the publisher log in as the group's own user, who may touch nothing else; where no user can be made,
    because the management API is not there, as whoever `address` names. `note` is told that. Entering raises Failure
    where the group's name is taken, and what provisioning raises.
    """

    address: BrokerAddress
    spec: GroupSpec
    is_own_broker: bool
    note: Callable[[str], None] = lambda line: None
    engine: Engine | None = None
    urls: tuple[str, ...] = field(default=(), repr=False)
    """Of the broker, with the login of the group's user."""

    async def __aenter__(self) -> Stage:
        group = self.spec.name
        self.urls = self.address.urls
        admin = LiveAdmin(self.address.places(), management_of(self.address))
        try:
            observed = await admin.observe(group)
            if not observed.is_empty:
                raise Failure(
                    f"there is a group {group!r} on this broker already: give the demo another name with --group; if "
                    f"a demo that was killed has left it, {LEFT_BEHIND.format(group)}"
                )
            self.engine = observed.engine
            if observed.users is UNKNOWN:
                self.note(f"no user of its own for the group: {'; '.join(observed.why.values())}")
                await create_group(admin, self.spec, with_user=False)
            else:
                password = secrets.token_urlsafe(16)
                await create_group(admin, self.spec, password=password)
                self.urls = tuple(
                    with_login(url, self.spec.client_username, password) for url in self.address.urls
                )
        finally:
            await admin.close()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_own_broker:
            return  # the group goes with its broker
        try:
            async with asyncio.timeout(CLEAR_TIMEOUT_S):
                await self._clear()
        except (TimeoutError, ProvisioningError, asyncio.CancelledError) as failed:
            why = str(failed) or "it took too long, or was interrupted"
            left = LEFT_BEHIND.format(self.spec.name)
            raise Failure(f"the demo's group could not be removed: {why}; {left}") from failed

    async def _clear(self) -> None:
        admin = LiveAdmin(self.address.places(), management_of(self.address))
        try:
            with_user = self.urls != self.address.urls
            await delete_group(admin, self.spec.name, force=True, with_user=with_user)
        finally:
            await admin.close()

    @property
    def where(self) -> str:
        """The engine with its version, and where it is, for a title."""
        assert self.engine is not None, "known once the block is entered"
        version = ".".join(map(str, self.engine.version))
        if self.is_own_broker:
            return f"embedded broker {version}"
        name = self.engine.product if self.engine.is_rabbitmq else "embedded broker"
        hosts = ", ".join(urlsplit(url).netloc.rpartition("@")[2] for url in self.address.urls)
        return f"{name} {version} at {hosts}"


def with_login(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}"))
