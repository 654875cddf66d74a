"""A private RabbitMQ node on loopback: its own ports, node name, epmd and directories, gone when closed.

    with RabbitNode() as node:
        connect(node.amqp_url)

Needs Debian's `rabbitmq-server` package; its scripts are used without its service or its configuration.
Nothing here knows pytest, so benchmarks use it as well. `python -m support.rabbitmq` (run in `tests/`)
keeps one up until Ctrl-C and prints its URLs.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

SCRIPTS = Path("/usr/lib/rabbitmq/bin")
USER = "guest"
PASSWORD = "guest"
_RATES = ("global", "basic", "detailed")
_PORTS_TAKEN: set[int] = set()


class NodeFailedError(RuntimeError):
    """The node did not come up; the message ends with the last lines it logged."""


class RabbitNode:
    """One RabbitMQ node. `start` takes about five seconds on an idle two-core machine.

    `config` adds lines to rabbitmq.conf (keys: https://www.rabbitmq.com/configure.html). RabbitMQ samples
    the statistics behind its management API every `statistics_s` seconds; it cannot do so more often than 1.

    The kernel kills the node if the thread that started it ends, so start it from a thread that stays.
    """

    def __init__(
        self,
        *,
        config: Mapping[str, str] | None = None,
        statistics_s: int = 5,
        directory: Path | None = None,
    ) -> None:
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="lbg-rabbitmq-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port, self.management_port, self._dist_port, self._epmd_port = _free_ports(4)
        self._config = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "management.tcp.ip": "127.0.0.1",
            "management.tcp.port": str(self.management_port),
            "collect_statistics_interval": str(statistics_s * 500),
            **{f"management.sample_retention_policies.{kind}.minute": str(statistics_s) for kind in _RATES},
            "log.file.level": "warning",
            "log.console": "false",
            "vm_memory_high_watermark.relative": "0.6",
            "disk_free_limit.absolute": "50MB",
            **(config or {}),
        }
        self._server: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None

    @property
    def amqp_url(self) -> str:
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.port}/"

    @property
    def management_url(self) -> str:
        return f"http://{USER}:{PASSWORD}@127.0.0.1:{self.management_port}"

    @property
    def pid(self) -> int:
        assert self._server is not None, "the node is not running"
        return self._server.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, *, timeout_s: float = 90) -> None:
        """Start (again, on its old data) and return when both AMQP and the management API answer."""
        deadline = time.monotonic() + timeout_s
        try:
            self._spawn(deadline)
            _wait_until(self._amqp_answers, deadline, self._check_alive)
            _wait_until(self._management_answers, deadline, self._check_alive)
        except BaseException:
            self.kill()
            raise

    def stop(self, *, timeout_s: float = 30) -> None:
        """Shut down as an operator would (SIGTERM); `start` brings the node back with its data."""
        if self._server is not None:
            self._server.send_signal(signal.SIGTERM)
            try:
                self._server.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._server.kill()
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the node; `start` brings it back with what had reached the disk."""
        for process in (self._server, self._epmd):
            if process is not None:
                process.kill()
                process.wait()
        self._server = self._epmd = None

    def close(self) -> None:
        """Kill the node and, unless the directory was the caller's, remove its data."""
        self.kill()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def new_vhost(self, name: str | None = None) -> str:
        """Create a virtual host where `guest` may do everything; returns its AMQP URL."""
        vhost = name or f"test-{secrets.token_hex(6)}"
        self._ask("PUT", f"/api/vhosts/{vhost}", "{}")
        everything = json.dumps({"configure": ".*", "write": ".*", "read": ".*"})
        self._ask("PUT", f"/api/permissions/{vhost}/{USER}", everything)
        return self.amqp_url + vhost

    def _ask(self, verb: str, path: str, body: str | None = None) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.management_port, timeout=30)
        try:
            token = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            connection.request(verb, path, body, {"Authorization": f"Basic {token}"})
            status = connection.getresponse().status
        finally:
            connection.close()
        if status >= 400:
            raise NodeFailedError(f"RabbitMQ answered {status} to {verb} {path}")
        return status

    def _spawn(self, deadline: float) -> None:
        if not (SCRIPTS / "rabbitmq-server").exists():
            raise NodeFailedError(
                "RabbitMQ is not installed: run `make dev`, or apt-get install rabbitmq-server"
            )
        self._write_files()
        epmd = _with_parent(["epmd", "-address", "127.0.0.1", "-port", str(self._epmd_port)])
        self._epmd = subprocess.Popen(epmd, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _wait_until(lambda: _connects(self._epmd_port), deadline, lambda: None)
        with (self.directory / "output").open("ab") as output:
            self._server = subprocess.Popen(
                _with_parent([str(SCRIPTS / "rabbitmq-server")]),
                env=self._environment(),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _write_files(self) -> None:
        lines = [f"{key} = {value}" for key, value in self._config.items()]
        (self.directory / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (self.directory / "enabled_plugins").write_text("[rabbitmq_management].\n")
        (self.directory / "rabbitmq-env.conf").write_text("")

    def _environment(self) -> dict[str, str]:
        base = {
            name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))
        }
        place = self.directory
        return base | {
            "HOME": str(place),  # the Erlang cookie lives here
            "RUNNING_UNDER_SYSTEMD": "true",  # the script execs erl, so the pid is ours
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"lbg-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_CONF_ENV_FILE": str(place / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(place / "data"),
            "RABBITMQ_LOG_BASE": str(place / "log"),
            "RABBITMQ_PID_FILE": str(place / "pid"),
            "RABBITMQ_SCHEDULER_BIND_TYPE": "u",  # bound schedulers of several nodes would share one core
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def _amqp_answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as probe:
            probe.sendall(b"AMQP\x00\x00\x09\x01")
            return probe.recv(1) == b"\x01"

    def _management_answers(self) -> bool:
        return self._ask("GET", "/api/overview") == 200

    def _check_alive(self) -> None:
        assert self._server is not None
        if self._server.poll() is not None:
            raise NodeFailedError(
                f"RabbitMQ ended with status {self._server.returncode}:\n{self._last_words()}"
            )

    def _last_words(self) -> str:
        words = []
        for file in [self.directory / "output", *sorted((self.directory / "log").glob("*.log"))]:
            if file.exists():
                words += file.read_text(errors="replace").splitlines()[-15:]
        return "\n".join(words)


def _with_parent(command: list[str]) -> list[str]:
    # A test run that is killed must not leave nodes behind.
    return ["setpriv", "--pdeathsig", "KILL", *command]


def _free_ports(count: int) -> list[int]:
    ports: list[int] = []
    while len(ports) < count:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port not in _PORTS_TAKEN:
            _PORTS_TAKEN.add(port)
            ports.append(port)
    return ports


def _connects(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return True


def _wait_until(probe: Callable[[], bool], deadline: float, check: Callable[[], None]) -> None:
    while True:
        check()
        try:
            if probe():
                return
        except (OSError, http.client.HTTPException, NodeFailedError):
            pass
        if time.monotonic() > deadline:
            raise NodeFailedError("RabbitMQ was not ready in time")
        time.sleep(0.05)


def main() -> None:
    with RabbitNode() as node:
        print(f"AMQP        {node.amqp_url}\nmanagement  {node.management_url}\nCtrl-C ends it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
