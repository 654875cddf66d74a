"""The embedded broker for tests: a process of its own that can be killed and started again on the same data.

    with EmbeddedBroker(tmp_path / "data") as broker:
        connect(broker.url)
        broker.kill()        # SIGKILL
        broker.start()       # same directory, same ports

In-process, inside a running event loop: ``async with in_process(tmp_path) as server: …`` (`server.port`).
Nothing here knows pytest. `python -m testing.broker.embedded DIRECTORY` (run in `tests/`) keeps one up until Ctrl-C.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from lbg_broker import Address, AdministratorFiles, Server, ServerSettings, TlsSettings, running, serve
from testing import ROOT
from testing.ports import free_port
from testing.waiting import GUARD_S, stop

USER = "guest"
PASSWORD = "guest"


class BrokerFailedError(RuntimeError):
    """The process ended before it listened; the message is what it said."""


class EmbeddedBroker:
    """One broker process. `settings` are fields of `ServerSettings` (numbers, texts, and of `tls` and `administrator`
    the list of their files), `under` is put before its command, with the directory that it begins in behind it."""

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, Any] | None = None,
        under: Sequence[str] = (),
        log_file: Path | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.port = free_port() if port is None else port
        self.management_port = free_port()
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[str] | None = None
        self._under = [*under, str(ROOT)] if under else []
        self.log_file = log_file or data_dir.parent / f"{data_dir.name}.log"

    @property
    def url(self) -> str:
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.port}/"

    @property
    def management_url(self) -> str:
        return f"http://{USER}:{PASSWORD}@127.0.0.1:{self.management_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it listens. Raises `BrokerFailedError`."""
        assert not self.is_running
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        told = json.dumps(
            {
                "data_dir": str(self.data_dir),
                "port": self.port,
                "management_port": self.management_port,
                **self._settings,
            }
        )
        with self.log_file.open("a") as log:
            self._process = subprocess.Popen(
                [*self._under, sys.executable, "-m", "testing.broker.embedded", "--told", told],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line.strip() != "ready":
            self._process.wait()
            self._process.stdout.close()
            raise BrokerFailedError(self.log_file.read_text()[-4000:])

    def kill(self) -> None:
        """SIGKILL: what a crash is."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM: an orderly stop. Returns the exit status."""
        return self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP: it falls silent with its sockets open."""
        stop(self.pid)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def put(self, path: str, **told: str) -> None:
        """To its management API, as guest: ``put("users/member", password="…", tags="")``."""
        self._ask("PUT", path, told)

    def perform(self, queue: str, action: str, **told: Any) -> dict[str, Any]:
        """An action of a queue of the default vhost, and its answer: ``perform("lbg.orders.q", "close")``."""
        return self._ask("POST", f"lbg/queues/%2F/{quote(queue, safe='')}/{action}", told)

    def queue(self, name: str) -> dict[str, Any]:
        """A queue of the default vhost in the management API."""
        return self._ask("GET", f"queues/%2F/{quote(name, safe='')}", None)

    def queues(self) -> list[dict[str, Any]]:
        """All queues in the management API."""
        return self._ask("GET", "queues", None)

    def connection_count(self) -> int:
        """Connections that the management API lists."""
        return len(self._ask("GET", "connections", None))

    def memory_bytes(self) -> int:
        """Resident memory of the process."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def _ask(self, method: str, path: str, told: Mapping[str, Any] | None) -> Any:
        """The management API as guest; returns its JSON, None where it has none."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.management_port}/api/{path}",
            data=None if told is None else json.dumps(told).encode(),
            method=method,
            headers={
                "Authorization": "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode(),
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=GUARD_S) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(number)
        status = self._process.wait(timeout=GUARD_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return status

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(signal.SIGKILL)


@asynccontextmanager
async def in_process(data_dir: Path, **settings: Any) -> AsyncIterator[Server]:
    """A broker in this process and loop, on a free port (`server.port`)."""
    async with running(ServerSettings(data_dir, listen=Address("127.0.0.1", 0), **settings)) as server:
        yield server


def _main(arguments: list[str]) -> None:
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if arguments[0] == "--told":
        told = json.loads(arguments[1])
        settings = ServerSettings(
            Path(told.pop("data_dir")),
            listen=Address("127.0.0.1", told.pop("port")),
            management=Address("127.0.0.1", told.pop("management_port")),
        )
        for name, kind in (("tls", TlsSettings), ("administrator", AdministratorFiles)):
            if name in told:
                told[name] = kind(*map(Path, told[name]))
        settings = replace(settings, **told)
    else:
        settings = ServerSettings(Path(arguments[0]), listen=Address("127.0.0.1", 5672))
    serve(settings, on_ready=lambda _server: print("ready", flush=True))


if __name__ == "__main__":
    _main(sys.argv[1:])
