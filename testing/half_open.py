"""A TCP proxy that can fall silent: what a broken switch or a frozen host looks like to both ends.

While silent, nothing is read and nothing is forwarded in either direction, and no FIN or RST is sent: each
end believes the connection is alive until its own heartbeat says otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib


class HalfOpenProxy:
    """Forwards 127.0.0.1:`port` to `target`; `silence()` and `heal()` switch the wire off and on."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._pairs: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.heal()
        self.reset()
        await asyncio.gather(*self._pairs)

    def silence(self) -> None:
        self._flowing.clear()

    def heal(self) -> None:
        """Let the bytes that waited go through, late; a peer that gave up meanwhile closes then."""
        self._flowing.set()

    def reset(self) -> None:
        """Cut every connection at once."""
        for writer in list(self._writers):
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = asyncio.ensure_future(self._join(reader, writer))
        self._pairs.add(pair)
        pair.add_done_callback(self._pairs.discard)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, upstream_writer)
        self._writers.update(pair)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, upstream_writer))
                group.create_task(self._pump(upstream_reader, writer))
        except* OSError:
            pass
        finally:
            self._writers.difference_update(pair)
            for end in pair:
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._flowing.wait()
            data = await reader.read(65536)
            await self._flowing.wait()
            if not data:
                with contextlib.suppress(OSError):
                    writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
