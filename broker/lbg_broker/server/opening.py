"""A broker made of what its store holds, or a new one."""

import asyncio
import logging
import secrets
from dataclasses import dataclass
from pathlib import Path

from lbg_broker.server.accounts import first_accounts, load_users
from lbg_broker.server.administrator import Administrator
from lbg_broker.server.core.broker import Broker
from lbg_broker.server.core.users import Users
from lbg_broker.server.store import Store
from lbg_broker.server.store.schema import STORE_FILE

__all__ = ["Opened", "open_broker"]

log = logging.getLogger("lbg.broker")


@dataclass(frozen=True, slots=True)
class Opened:
    broker: Broker
    users: Users
    store: Store


async def open_broker(data_dir: Path, administrator: Administrator | None, *, default_group: str) -> Opened:
    """Raises `StoreError` and `RestoreError`."""
    store = await asyncio.to_thread(Store, data_dir / STORE_FILE)
    try:
        if store.short is not None:
            log.error(
                "%s: the disk has no room for the reserve that acknowledgements need, so consumers may wait too: "
                "free %d KiB, or let the volume grow",
                store.path.parent,
                store.wanted_bytes // 1024 + 1,
            )
        stored = await asyncio.to_thread(store.load)
        users = load_users(stored.definitions)
        accounts = first_accounts(users, administrator)
        broker = Broker(users, new_token=_new_token, stored=stored, default_group=default_group)
    except BaseException:
        store.close()
        raise
    for account in accounts:
        broker.define(account.kind, account.key, account.value)
    return Opened(broker, users, store)


def _new_token() -> str:
    return secrets.token_urlsafe(16)
