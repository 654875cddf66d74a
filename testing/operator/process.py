"""`lbg operator run` in a process of its own, on an API server in this one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from lbg_operator.kube.kinds import CONFIG_MAP, DEPLOYMENT, GROUP, SECRET
from lbg_operator.runtime.watches import SELECTORS
from testing.broker.embedded import EmbeddedBroker
from testing.command_line import clean_environment
from testing.kubernetes.manifests import consumer, group_manifest
from testing.kubernetes.served_cluster import TOKEN, ServedCluster
from testing.ports import free_port
from testing.waiting import GUARD_S, until

SETTINGS = {
    "LBG_OPERATOR_SIDECAR_IMAGE": "s:1",
    "LBG_OPERATOR_BROKER_IMAGE": "b:1",
    "LBG_OPERATOR_LOG_FORMAT": "text",
}


class OperatorProcess:
    """An API server in this process, and an operator in its own."""

    def __init__(self, served: ServedCluster, broker: EmbeddedBroker, directory: Path) -> None:
        self.broker = broker
        self.served = served
        self.cluster = served.cluster
        self.port = free_port()
        self._directory = directory
        self._log = directory / "operator.log"
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def start(self, *, token: str = TOKEN) -> None:
        environment = {
            **clean_environment(),
            **SETTINGS,
            "KUBECONFIG": str(self.served.kubeconfig(self._directory, token=token)),
            "PYTHONWARNINGS": "default",
        }
        command = [
            sys.executable,
            "-m",
            "lbgroup",
            "operator",
            "run",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, env=environment, stderr=log, stdout=log, text=True)

    async def ended(self) -> int:
        """Its status, by itself."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, GUARD_S)

    async def end(self) -> tuple[int, float]:
        """Status and seconds after SIGTERM."""
        assert self._process is not None
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(self._process.wait, GUARD_S)
        self._process = None
        return status, time.monotonic() - began

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(f"http://127.0.0.1:{self.port}{path}") as response:
                    return response.status, await response.text()
            except aiohttp.ClientConnectionError:
                return 0, ""

    async def until(self, condition: Callable[[], object], what: str) -> None:
        try:
            await until(condition, timeout_s=GUARD_S, every_s=0.05, what=what)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.log[-3000:]}") from None

    async def watches(self) -> None:
        await self.until(
            lambda: all(self.served.watching[kind.plural] for kind in SELECTORS), "all kinds are watched"
        )

    async def ready(self) -> None:
        for _ in range(800):
            status, why = await self.get("/readyz")
            if status == 200:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(why)

    def status(self, name: str) -> dict[str, Any]:
        seen: dict[str, Any] = self.cluster.objects.get((GROUP, "shop", name), {})
        return dict(seen.get("status", {}))

    def condition(self, name: str, kind: str) -> str:
        told = self.status(name).get("conditions", ())
        return next((each["status"] for each in told if each["type"] == kind), "")

    def message(self, name: str, kind: str) -> str:
        told = self.cluster.objects[GROUP, "shop", name]["status"]["conditions"]
        return next(str(each["message"]) for each in told if each["type"] == kind)

    def has_children(self, name: str) -> bool:
        wanted = ((SECRET, f"{name}-lbg"), (CONFIG_MAP, f"{name}-lbg"), (DEPLOYMENT, name))
        return all((kind, "shop", called) in self.cluster.objects for kind, called in wanted)

    def apply_group(self, name: str) -> None:
        self.cluster.put(group_manifest({"replicas": 1, "consumer": consumer()}, name=name))
