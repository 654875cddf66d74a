"""What those wait for who publish: room, the last confirm, or the end of publishing."""

from __future__ import annotations

import asyncio


class Progress:
    """`failure`: what ended publishing, for good; None while it goes on."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._made = asyncio.Event()
        self._failed = asyncio.Event()

    def made(self) -> None:
        """Whoever waits should look."""
        self._made.set()

    async def more(self) -> None:
        """Return when there was some from now on. Raises `failure`."""
        if self.failure is not None:
            raise self.failure
        self._made.clear()
        await self._made.wait()
        if self.failure is not None:
            raise self.failure

    def fail(self, error: Exception) -> None:
        """The first failure counts."""
        self.failure = self.failure or error
        self._failed.set()
        self._made.set()

    async def failed(self) -> Exception:
        """Return the failure, when there is one."""
        await self._failed.wait()
        assert self.failure is not None
        return self.failure
