"""Connecting again and again: a live connection each time round."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Self

from lbg_broker.amqp import Table
from lbg_broker.client.backoff import Backoff
from lbg_broker.client.connecting import connect
from lbg_broker.client.connection import ClientConnection
from lbg_broker.client.errors import ConnectError, SettingsError, TlsError
from lbg_broker.client.settings import ConnectionSettings

__all__ = ["Reconnecting", "reconnecting"]


class Reconnecting:
    """An endless iterator of live connections; see `reconnecting`."""

    def __init__(
        self,
        places: list[ConnectionSettings],
        open_one: Callable[[ConnectionSettings], Awaitable[ClientConnection]],
        backoff: Backoff,
        on_failure: Callable[[ConnectError, float], None] | None,
    ) -> None:
        self._places = places
        self._open_one = open_one
        self._backoff = backoff
        self._on_failure = on_failure
        self._next = 0
        self._failures = 0
        self._current: ClientConnection | None = None
        self._opened_at = 0.0
        self._was_open = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ClientConnection:
        await self._leave_current()
        refusals = 0
        while True:
            if self._failures:
                await asyncio.sleep(self._backoff.delay_s(self._failures))
            place = self._places[self._next % len(self._places)]
            try:
                self._current = await self._open(place)
            except ConnectError as error:
                refusals = 0 if error.retryable else refusals + 1
                if not self._was_open and refusals >= len(self._places):
                    raise
                self._next += 1
                self._failures += 1
                if self._on_failure is not None:
                    self._on_failure(error, self._backoff.delay_s(self._failures))
                continue
            self._was_open = True
            self._opened_at = asyncio.get_running_loop().time()
            return self._current

    async def _open(self, place: ConnectionSettings) -> ClientConnection:
        try:
            return await self._open_one(place)
        except SettingsError as error:
            if not self._was_open:
                raise
            # Certificate and key were readable before: they are being replaced, one file after the other.
            raise TlsError(f"{place.address}: {error}") from error

    async def _leave_current(self) -> None:
        if self._current is None:
            return
        await self._current.close()
        # A broker that accepts and then drops at once counts as failing.
        lived_s = asyncio.get_running_loop().time() - self._opened_at
        self._failures = 1 if lived_s > self._backoff.max_s else self._failures + 1
        self._next += 1
        self._current = None


def reconnecting(
    where: ConnectionSettings | str | Iterable[ConnectionSettings | str],
    *,
    name: str = "lbg",
    heartbeat_s: int | None = None,
    client_properties: Table | None = None,
    backoff: Backoff | None = None,
    on_failure: Callable[[ConnectError, float], None] | None = None,
) -> Reconnecting:
    """Yield a live connection each time round; the last one is closed first if it still lives.

    ::

        async for connection in reconnecting(urls):
            channel = await connection.open_channel()
            ...
            await connection.closed

    Several addresses are tried in turn. Between attempts it waits as `backoff` says, and calls `on_failure` with
    the error and the longest wait that follows. An attempt that would fail the same way again (login refused,
    certificate wrong, at every address) raises its `ConnectError` as long as there has been no connection at all;
    later it is retried too, because a broker that restarts may refuse for a while, and because a new password or
    certificate is on its way to every client while the broker knows it already. Whoever breaks out of the loop owns
    the last connection.
    """
    items = [where] if isinstance(where, str | ConnectionSettings) else list(where)
    if not items:
        raise SettingsError("no address is given")
    places = [ConnectionSettings.parse(item) if isinstance(item, str) else item for item in items]

    async def open_one(place: ConnectionSettings) -> ClientConnection:
        return await connect(place, name=name, heartbeat_s=heartbeat_s, client_properties=client_properties)

    return Reconnecting(places, open_one, backoff or Backoff(), on_failure)
