"""The HTTP client of the channels that push: one host, kept connections, replies that are never larger than a limit."""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp

from .targets import Target

CONNECT_TIMEOUT_S = 5.0
IDLE_MAX_S = 4.0
"""Node and uvicorn close a connection that was idle for 5 s: a request must not meet that close on its way."""

_SKIPPED = frozenset({"Accept", "Accept-Encoding", "User-Agent"})


class Unreachable(Exception):
    """Nobody answered: refused, reset, or cut off before the reply. `str()` says which."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes  # as much of it as the limit lets through
    retry_after: str | None


class Requester:
    """Raises Unreachable from each request; a request that is cancelled closes its connection."""

    def __init__(self, target: Target) -> None:
        connector: aiohttp.BaseConnector
        if target.socket is not None:
            connector = aiohttp.UnixConnector(target.socket, limit=0, keepalive_timeout=IDLE_MAX_S)
        else:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_MAX_S)
        self._base = target.base
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            skip_auto_headers=_SKIPPED,
            auto_decompress=False,  # nothing was asked for compressed, and a limit must be one of memory
        )

    async def post(self, path: str, headers: dict[str, str], body: bytes, *, reply_max_bytes: int) -> Reply:
        return await self._ask("POST", path, headers, body, reply_max_bytes)

    async def get(self, path: str, *, reply_max_bytes: int) -> Reply:
        return await self._ask("GET", path, None, None, reply_max_bytes)

    async def close(self) -> None:
        await self._session.close()

    async def _ask(
        self, method: str, path: str, headers: dict[str, str] | None, body: bytes | None, limit: int
    ) -> Reply:
        try:
            async with self._session.request(
                method, self._base + path, headers=headers, data=body, allow_redirects=False
            ) as response:
                return Reply(
                    response.status, await _read(response, limit), response.headers.get("Retry-After")
                )
        except aiohttp.ClientError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        except (OSError, TimeoutError) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    if response.content.at_eof():
        return b""
    chunks = []
    size = 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            response.close()  # the rest would come in front of the next reply
            break
    return b"".join(chunks)[:limit]
