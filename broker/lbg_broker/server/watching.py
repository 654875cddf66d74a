"""Files that change under a running broker: a certificate that was renewed, a password that was changed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from lbg_broker.server.errors import StartError
from lbg_broker.server.store import StoreError

__all__ = ["Watched"]

log = logging.getLogger("lbg.broker")

Marks = tuple[tuple[int, int, int] | None, ...]


class Watched:
    """Files as they are when this is made, which is to be before anybody reads them.

    Kubernetes replaces the files of a Secret by changing one symbolic link («Secrets», mounted Secrets are updated
    automatically), so what counts is where a path leads.
    """

    def __init__(self, called: str, files: Sequence[Path]) -> None:
        self._called = called
        self.files = tuple(files)
        self._known = _marks(self.files)

    async def follow(self, take_up: Callable[[], Awaitable[None]], *, every_s: float) -> None:
        """Call `take_up` whenever one of the files is another or has changed, for ever.

        Two files may be seen half changed: what `take_up` refuses is tried again each time, and told once.
        """
        told = ""
        while True:
            await asyncio.sleep(every_s)
            marks = await asyncio.to_thread(_marks, self.files)
            if marks == self._known:
                continue
            try:
                await take_up()
            except (StartError, StoreError) as error:
                if str(error) != told:
                    told = str(error)
                    log.warning("%s changed and cannot be used, the former stays: %s", self._called, error)
            else:
                self._known, told = marks, ""
                log.info("%s changed and is used from now on", self._called)


def _marks(files: Sequence[Path]) -> Marks:
    return tuple(_mark(file) for file in files)


def _mark(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
