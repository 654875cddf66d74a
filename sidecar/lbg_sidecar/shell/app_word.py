"""What the application says of itself: whether it is ready, and what it has processed. The part of its channel's
`Calls` that is not about calls."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable

from ..app import AppChannel
from ..consuming.positions import Positions, StreamRuns
from ..participating import Participant
from .asking import Asking

log = logging.getLogger("lbg.member")


class AppWord(ABC):
    """`app_ready` is set while it is."""

    def __init__(self, machine: Participant, app: AppChannel) -> None:
        self.machine = machine
        self.app_ready = asyncio.Event()
        self.app_ready.set()
        self.app_unready_why = ""
        self._asking = Asking(app, lambda: bool(self.machine.consumption.running), self.ready)

    def ready(self, is_ready: bool, why: str = "") -> None:
        if is_ready == self.app_ready.is_set():
            return
        if is_ready:
            log.info("%s: the application is ready", self.machine.name)
            self.app_unready_why = ""
            self.app_ready.set()
            return
        log.warning("%s: the application is not ready: %s", self.machine.name, why)
        self.app_unready_why = why
        self.app_ready.clear()
        self._became_unready()

    @abstractmethod
    def _became_unready(self) -> None: ...

    def processed(self, streams: Iterable[StreamRuns]) -> None:
        self.machine.consumption.processed.merge(Positions(tuple(streams)))

    @property
    def session(self) -> str | None:
        position = self.machine.consumption.session
        return position.name if position is not None else None

    def committed(self, sequence: int, epoch: str | None = None) -> None:
        position = self.machine.consumption.session
        if position is not None:
            position.told(sequence, epoch)

    def on_ask_again(self) -> None:
        self._asking.start()
