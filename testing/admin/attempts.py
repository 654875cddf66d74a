"""Attempts on a broker that a user is to be refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from lbg_core.client import AccessRefused, Channel, ClientConnection

Attempt = Callable[[Channel], Awaitable[object]]


async def allowed(connection: ClientConnection, attempts: Mapping[str, Attempt]) -> list[str]:
    """Names of the attempts that the broker does not refuse, each made on a channel of its own."""
    names = []
    for name, attempt in attempts.items():
        try:
            await attempt(await connection.open_channel())
        except AccessRefused:
            continue
        names.append(name)
    return names
