"""`lbg sidecar` as a process on the embedded broker, and what a test asks it and its broker."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import secrets
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from lbg_core.group import GroupSpec
from lbg_core.publisher import GroupPublisher
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.command_line import start_lbg
from testing.waiting import GUARD_S

PROMPT = (
    "import sys, json\nfor line in sys.stdin:\n "
    "print(json.dumps({'id': json.loads(line)['id'], 'verdict': 'ack'}), flush=True)"
)
"""A command that acknowledges everything."""


def create(broker: EmbeddedBroker, group: str) -> None:
    spec = GroupSpec(group, group, hash_count=8, queue_count=2, queue_size_mb=8)
    _await(declare_group(broker.url, spec))


BATCH = "application/cloudevents-batch+json"
OBSERVED = r'observed listener: ([^\s"]+)'


class SidecarProcess:
    """Started at once, waited for by nobody. LBG_NAME also names its files; `socket` is its local listener. `config` is
    a file that says where the broker is, in place of `url`."""

    def __init__(
        self,
        url: str,
        directory: Path,
        group: str,
        *,
        config: Path | None = None,
        under: Sequence[str] = (),
        **settings: str,
    ) -> None:
        name = settings.get("LBG_NAME", group)
        self.log = directory / f"{name}.log"
        self.socket = directory / f"{name}.sock"
        environment = {
            **({} if config else {"LBG_BROKER": url}),
            "LBG_GROUP": group,
            "LBG_LOCAL": f"unix:{self.socket}",
            "LBG_OBSERVED": "127.0.0.1:0",
            "LBG_REBALANCE_DELAY_S": "0.2",
            **settings,
        }
        with self.log.open("a") as log:
            arguments = ("sidecar", "--config", str(config)) if config else ("sidecar",)
            self.process = start_lbg(*arguments, under=under, environment=environment, stdout=log, stderr=log)

    @property
    def text(self) -> str:
        return self.log.read_text()

    @property
    def observed(self) -> str:
        """The address of its other listener; empty until it listens."""
        found = re.findall(OBSERVED, self.text)
        return found[-1] if found else ""

    def get(self, path: str, *, timeout_s: float = GUARD_S) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.observed}{path}", timeout=timeout_s) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            raise AssertionError(f"{error!r}, process {self.process.poll()}: {self.text}") from None

    def ready(self) -> bool:
        return bool(self.observed) and self.get("/readyz")[0] == 200

    def acked(self) -> int:
        found = re.search(r"^lbg_messages_acked_total{.*} (\S+)$", self.get("/metrics")[1], re.M)
        return int(float(found[1])) if found else 0

    def publish(self, group: str, count: int) -> None:
        """Through its own endpoint, over twenty keys."""
        events = [
            {
                "specversion": "1.0",
                "id": secrets.token_hex(8),
                "source": "/t",
                "type": "t",
                "partitionkey": str(n % 20),
            }
            for n in range(count)
        ]
        body = json.dumps(events).encode()
        status, text = self.ask("POST", f"/v1/publish/{group}", body, BATCH)
        assert status == 200, text

    def ask(
        self, method: str, path: str, body: bytes = b"", content_type: str = "text/plain", **headers: str
    ) -> tuple[int, str]:
        """A request to its local listener."""
        connection = http.client.HTTPConnection("localhost", timeout=GUARD_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        with closing(connection):
            connection.sock.settimeout(GUARD_S)
            connection.sock.connect(str(self.socket))
            connection.request(method, path, body, {"Content-Type": content_type, **headers})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def told(self, event: str) -> list[dict[str, Any]]:
        """Lines of its log in JSON that tell of such an event."""
        lines = [json.loads(line) for line in self.text.splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("event") == event]


class Sidecar(SidecarProcess):
    """With `app` as the command's script; there when it listens."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        directory: Path,
        group: str,
        app: str,
        *,
        config: Path | None = None,
        under: Sequence[str] = (),
        **more: str,
    ) -> None:
        script = directory / f"{more.get('LBG_NAME', group)}.py"
        script.write_text(app)
        command = f"{sys.executable} {script}"
        settings = {"LBG_COMMAND": command, **more}
        super().__init__(broker.url, directory, group, config=config, under=under, **settings)
        self.until(lambda: self.observed)

    def until(self, condition: Any) -> None:
        deadline = time.monotonic() + GUARD_S
        while not condition():
            assert time.monotonic() < deadline, self.text
            assert self.process.poll() is None, self.text
            time.sleep(0.05)


def publish(broker: EmbeddedBroker, group: str, count: int) -> None:
    """Over twenty keys."""

    async def publish() -> None:
        async with GroupPublisher(broker.url, group=group) as publisher:
            for number in range(count):
                await publisher.publish(key=str(number % 20), body=b"%d" % number)
            await publisher.flush()

    _await(publish())


def _await(work: Coroutine[Any, Any, None]) -> None:
    """In a loop of its own, also where one runs already."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result(GUARD_S)
