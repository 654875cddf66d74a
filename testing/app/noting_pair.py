"""Two sidecars of one group, each with an application that notes what it gets, over any channel."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
from contextlib import suppress
from pathlib import Path

from testing.app.notes import Notes, missing
from testing.app.noting_process import NotingApp
from testing.sidecar.load import new_group
from testing.sidecar.process import SidecarProcess
from testing.waiting import GUARD_S, until

CHANNELS = ("command", "http", "http-batch", "stream")


class Pair:
    """`a` and `b` are started by `start`; `apps` and `notes` are of both."""

    a: SidecarProcess
    b: SidecarProcess

    def __init__(
        self, url: str, directory: Path, *, channel: str = "command", work_s: float = 0.002, **settings: str
    ) -> None:
        self.url = url
        self.group = f"g{secrets.token_hex(4)}"
        self.apps = [NotingApp(directory, name, work_s=work_s) for name in "ab"]
        self.notes = Notes(*(app.notes_file for app in self.apps))
        self._directory = directory
        self._channel = channel
        self._settings = settings

    async def start(self) -> None:
        await new_group(self.url, self.group)
        self.a = self.sidecar("a")
        self.start_app("a")
        # It consumes every queue before B comes: until both have messages, it serves them all.
        await until(lambda: "live members: 1 (" in self.a.text, every_s=0.02, what="A in its group")
        self.b = self.sidecar("b")
        self.start_app("b")
        await self.both_serve()

    def sidecar(self, name: str) -> SidecarProcess:
        told = {"LBG_NAME": name, "LBG_APP": self._channel}
        if self._channel == "command":
            told["LBG_COMMAND"] = self.apps["ab".index(name)].command
        elif self._channel != "stream":
            path = "/batch" if self._channel == "http-batch" else "/"
            told["LBG_TARGET"] = f"unix:{self._socket(name)}:{path}"
        return SidecarProcess(self.url, self._directory, self.group, **told, **self._settings)

    def start_app(self, name: str) -> None:
        """Unless the sidecar starts it."""
        app = self.apps["ab".index(name)]
        if self._channel == "stream":
            app.start("stream", self._directory / f"{name}.sock")
        elif self._channel != "command":
            app.start("http", self._socket(name))

    def kill_app(self, name: str) -> None:
        self.apps["ab".index(name)].kill()

    def kill_command(self, name: str) -> None:
        """SIGKILL to the command that the sidecar runs."""
        sidecar = self.a if name == "a" else self.b
        _, state = sidecar.ask("GET", "/v1/state")
        os.kill(json.loads(state)["app"]["pid"], signal.SIGKILL)

    async def both_serve(self) -> None:
        """Both are ready and know of each other: each has half of the queues, or will have."""
        with suppress(TimeoutError):
            await until(
                lambda: all(one.ready() and "live members: 2 (" in one.text for one in (self.a, self.b)),
                timeout_s=GUARD_S,
                every_s=0.1,
            )
            return
        raise AssertionError(self.a.text + self.b.text)

    async def all_ended(self, count: int) -> None:
        with suppress(TimeoutError):
            await until(lambda: self.notes.size >= 2 * count, every_s=0.1)
            await until(lambda: len(self.notes.ended()) == count, every_s=0.5)
        assert missing(self.notes, range(count)) == set()

    def end(self) -> None:
        for app in self.apps:
            app.kill()

    def _socket(self, name: str) -> Path:
        return self._directory / f"{name}-app.sock"


def delivered_again(sidecar: SidecarProcess) -> int:
    """Number of messages that it reports as redelivered."""
    found = re.search(r"left the group: (\d+|nothing)", sidecar.text)
    assert found is not None, sidecar.text
    return 0 if found[1] == "nothing" else int(found[1])
