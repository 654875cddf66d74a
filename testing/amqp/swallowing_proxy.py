"""A proxy in front of a broker that lets deliveries and confirms of chosen channels vanish: a channel half dead, its
connection alive."""

from __future__ import annotations

import asyncio
import struct
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_HEADER = struct.Struct(">BHI")  # AMQP 0-9-1 section 2.3.5: frame type, channel, size of the payload
_GREETING_BYTES = 8
_METHOD, _CONTENT = 1, (2, 3)
_VANISHING = {struct.pack(">HH", 60, 60), struct.pack(">HH", 60, 80)}  # basic.deliver, basic.ack
_CONSUME = struct.pack(">HH", 60, 20)
_CHANNEL_CLOSE_OK = struct.pack(">HH", 20, 41)


class SwallowingProxy:
    """`url` is the broker's, through the proxy. `swallow` holds connections (by their client's port) and channels;
    a channel that is closed is none of them any more."""

    def __init__(self, broker_url: str) -> None:
        self._broker_url = broker_url
        self._parts = urlsplit(broker_url)
        self.swallow: set[tuple[int, int]] = set()
        self.swallowed = 0
        self.consumers: dict[str, tuple[int, int]] = {}
        """By queue: the connection and channel that asked last to consume from it."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return self._broker_url.replace(f":{self._parts.port}/", f":{port}/")

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("peername")[1]
        from_broker, to_broker = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        for pumping in (self._upwards(port, reader, to_broker), self._downwards(port, from_broker, writer)):
            task = asyncio.create_task(pumping)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _upwards(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await reader.readexactly(_GREETING_BYTES))
            while True:
                header = await reader.readexactly(_HEADER.size)
                kind, channel, size = _HEADER.unpack(header)
                rest = await reader.readexactly(size + 1)
                if kind == _METHOD and rest[:4] == _CONSUME:
                    self.consumers[rest[7 : 7 + rest[6]].decode()] = (port, channel)
                writer.write(header + rest)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _downwards(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                header = await reader.readexactly(_HEADER.size)
                kind, channel, size = _HEADER.unpack(header)
                rest = await reader.readexactly(size + 1)
                if kind == _METHOD and rest[:4] == _CHANNEL_CLOSE_OK:
                    self.swallow.discard((port, channel))
                vanishes = kind in _CONTENT or (kind == _METHOD and rest[:4] in _VANISHING)
                if (port, channel) in self.swallow and vanishes:
                    self.swallowed += kind == _METHOD
                else:
                    writer.write(header + rest)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
