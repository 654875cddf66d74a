"""A private RabbitMQ node on loopback: its own ports, node name, epmd and directories, gone when closed.

    with RabbitNode() as node:
        connect(node.amqp_url)

Which RabbitMQ that is, `testing.rabbitmq.installation` says. Nothing here knows pytest, so benchmarks use it as well.

`python -m testing.rabbitmq.node` keeps a node up until Ctrl-C and prints its URLs;
`python -m testing.rabbitmq.node -- COMMAND` runs the command with LBG_BROKER and LBG_MANAGEMENT set to them, and
ends with its status.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from testing.ports import free_port
from testing.rabbitmq.installation import Installation, NodeFailedError
from testing.waiting import GUARD_S, stop

USER = "guest"
PASSWORD = "guest"
START_S = 240.0
"""Longest start of a node: 5 s on an idle machine of two cores, minutes on a busy one."""

CONTROL_S = 180.0
"""Longest run of rabbitmqctl: 1.5 s on an idle machine, a minute on a busy one."""

_RATES = ("global", "basic", "detailed")
_ON_LOOPBACK = "-kernel inet_dist_use_interface {127,0,0,1}"


class Epmd:
    """The port mapper through which Erlang nodes find each other; nodes that share one can form a cluster."""

    def __init__(self, installation: Installation) -> None:
        self.port = free_ports(1)[0]
        self._installation = installation
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, timeout_s: float = GUARD_S) -> None:
        """Start it unless it runs. Raises `NodeFailedError`."""
        if self._process is None:
            command = self._installation.command("epmd", "-address", "127.0.0.1", "-port", str(self.port))
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
            )
            wait_until(lambda: _connects(self.port), timeout_s=timeout_s)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class RabbitNode:
    """One RabbitMQ node. `start` takes about five seconds on an idle two-core machine.

    `config` adds lines to rabbitmq.conf (keys: https://www.rabbitmq.com/configure.html). RabbitMQ samples
    the statistics behind its management API every `statistics_s` seconds; it cannot do so more often than 1.
    Nodes of one cluster share an `epmd` and a `cookie`; a node that is given none has its own.

    The kernel kills the node if the thread that started it ends, so start it from a thread that stays.
    """

    may_start: ClassVar[bool] = True
    """Of all nodes; False where none is expected."""

    def __init__(
        self,
        *,
        config: Mapping[str, str] | None = None,
        statistics_s: int = 5,
        directory: Path | None = None,
        epmd: Epmd | None = None,
        cookie: str | None = None,
        plugins: Sequence[str] = (),
    ) -> None:
        self._installation = Installation.of_environment()
        self.version = self._installation.version
        self._plugins = ["rabbitmq_management", *plugins]
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="lbg-rabbitmq-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port, self.management_port, self._dist_port = free_ports(3)
        self.name = f"lbg-{self.port}@localhost"
        self._own_epmd = epmd is None
        self._epmd = epmd or Epmd(self._installation)
        self._cookie = cookie or secrets.token_hex(10)
        self.config = {
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
        """The lines of rabbitmq.conf, read at each start."""
        self._server: subprocess.Popen[bytes] | None = None
        self.frozen = False

    @property
    def amqp_url(self) -> str:
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.port}/"

    @property
    def management_url(self) -> str:
        return f"http://{USER}:{PASSWORD}@127.0.0.1:{self.management_port}"

    @property
    def runs(self) -> bool:
        """True if its process lives; it may be frozen, or on its way up or down."""
        return self._server is not None and self._server.poll() is None

    @property
    def pid(self) -> int:
        assert self._server is not None, "the node is not running"
        return self._server.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self, *, timeout_s: float = START_S) -> None:
        """Start (again, on its old data) and return when both AMQP and the management API answer."""
        self.spawn()
        self.wait_ready(timeout_s=timeout_s)

    def spawn(self) -> None:
        """Start, and return at once; `wait_ready` must follow."""
        assert self._server is None, "the node is running"
        assert self.may_start, "what starts a RabbitMQ node has the mark rabbitmq"
        self._write_files()
        self._epmd.start()
        with (self.directory / "output").open("ab") as output:
            self._server = subprocess.Popen(
                self._installation.script("rabbitmq-server", see=self.directory),
                env=self._environment(),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,  # a terminal's Ctrl-C is not for the node, which has to outlive who uses it
            )

    def wait_ready(self, *, timeout_s: float = START_S) -> None:
        """Return when both AMQP and the management API answer. Raises `NodeFailedError` and leaves nothing running."""
        try:
            wait_until(self.answers, timeout_s=timeout_s, check=self._check_alive)
        except BaseException:
            self.kill()
            raise

    def answers(self) -> bool:
        """True if AMQP and the management API answer.
        Raises OSError or `NodeFailedError` if they refuse."""
        with self.dial(timeout_s=5) as probe:
            return probe.recv(1) == b"\x01" and self.ask("GET", "/api/overview") is not None

    def stop(self, *, timeout_s: float = GUARD_S) -> None:
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
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None
            self.frozen = False
        if self._own_epmd:
            self._epmd.close()

    def freeze(self) -> None:
        """SIGSTOP: the node's sockets stay open and nobody answers, as on a machine that stands still."""
        stop(self.pid)
        self.frozen = True

    def thaw(self) -> None:
        """SIGCONT: go on after `freeze`."""
        os.kill(self.pid, signal.SIGCONT)
        self.frozen = False

    def close(self) -> None:
        """Kill the node and, unless the directory was the caller's, remove its data."""
        self.kill()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def dial(self, *, timeout_s: float) -> socket.socket:
        """A bare connection that has sent AMQP's protocol header; a node that serves answers with a frame."""
        probe = socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)
        probe.sendall(b"AMQP\x00\x00\x09\x01")
        return probe

    def new_vhost(self, name: str | None = None) -> str:
        """Create a virtual host where `guest` may do everything; returns its AMQP URL."""
        vhost = name or f"test-{secrets.token_hex(6)}"
        self.ask("PUT", f"/api/vhosts/{vhost}", "{}")
        everything = json.dumps({"configure": ".*", "write": ".*", "read": ".*"})
        self.ask("PUT", f"/api/permissions/{vhost}/{USER}", everything)
        return self.amqp_url + vhost

    def control(self, *command: str, timeout_s: float = CONTROL_S) -> str:
        """Run rabbitmqctl against the node, about 1.5 s, and return its output. Raises `NodeFailedError`."""
        try:
            done = subprocess.run(
                self._installation.script("rabbitmqctl", "-q", *command, see=self.directory),
                env=self._environment(),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=True,
            )
        except subprocess.TimeoutExpired as error:
            raise NodeFailedError(f"rabbitmqctl {command[0]} took more than {timeout_s:g} s") from error
        except subprocess.CalledProcessError as error:
            raise NodeFailedError(
                f"rabbitmqctl {command[0]} failed:\n{error.stdout}{error.stderr}"
            ) from error
        return done.stdout

    def script(self, name: str) -> str:
        """A line of sh that becomes one of RabbitMQ's scripts, with its arguments, for this node."""
        program = self._installation.script(name, see=self.directory)
        ours = {key: value for key, value in self._environment().items() if os.environ.get(key) != value}
        ours["PLUGINS_DIR"] = self._installation.plugins  # as Debian's own rabbitmq-plugins sets it
        return (
            f'exec {shlex.join(["env", *(f"{key}={value}" for key, value in ours.items()), *program])} "$@"'
        )

    def evaluate(self, erlang: str, *, timeout_s: float = CONTROL_S) -> str:
        """The printed value of an Erlang expression (without its final dot) inside the node.

        By erl_call, in milliseconds: rabbitmqctl starts an Erlang of its own. Raises `NodeFailedError`.
        """
        command = self._installation.command(
            "erl_call", "-r", "-sname", self.name, "-timeout", f"{timeout_s:.0f}", "-e", see=self.directory
        )
        done = subprocess.run(
            command,
            env=self._environment(),
            input=erlang + ".\n",
            capture_output=True,
            text=True,
            check=False,
        )
        kind, _, value = done.stdout.strip().removeprefix("{").removesuffix("}").partition(", ")
        if done.returncode != 0 or kind != "ok":
            raise NodeFailedError(f"{erlang.strip()} failed:\n{done.stdout}{done.stderr}")
        return value

    def ask(self, verb: str, path: str, body: str | None = None) -> Any:
        """One request to the management API; its JSON, None where there is none. Raises `NodeFailedError`, OSError."""
        connection = http.client.HTTPConnection("127.0.0.1", self.management_port, timeout=GUARD_S)
        try:
            token = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
            connection.request(verb, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status >= 400:
            raise NodeFailedError(f"RabbitMQ answered {answer.status} to {verb} {path}")
        return json.loads(text) if text else None

    def _write_files(self) -> None:
        lines = [f"{key} = {value}" for key, value in self.config.items()]
        (self.directory / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (self.directory / "enabled_plugins").write_text(f"[{', '.join(self._plugins)}].\n")
        (self.directory / "rabbitmq-env.conf").write_text("")
        cookie = self.directory / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text(self._cookie)
            cookie.chmod(0o400)

    def _environment(self) -> dict[str, str]:
        base = {
            name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))
        }
        place = self.directory
        return base | {
            "HOME": str(place),  # the Erlang cookie lives here
            "RUNNING_UNDER_SYSTEMD": "true",  # the script execs erl, so the pid is ours
            "ERL_EPMD_PORT": str(self._epmd.port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.name,
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
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ON_LOOPBACK,
            "RABBITMQ_CTL_ERL_ARGS": _ON_LOOPBACK,
            "RABBITMQ_CTL_DIST_PORT_MAX": "36671",  # by default eleven can run at a time on a machine
        }

    def _check_alive(self) -> None:
        assert self._server is not None
        if self._server.poll() is not None:
            raise NodeFailedError(
                f"RabbitMQ ended with status {self._server.returncode}:\n{self._last_words()}"
            )

    def logs(self) -> str:
        """Warnings and errors that the node has logged."""
        return "".join(file.read_text(errors="replace") for file in self._log_files())

    def _log_files(self) -> list[Path]:
        return sorted((self.directory / "log").glob("*.log"))

    def _last_words(self) -> str:
        words = []
        for file in [self.directory / "output", *self._log_files()]:
            if file.exists():
                words += file.read_text(errors="replace").splitlines()[-15:]
        return "\n".join(words)


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


def _connects(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return True


def wait_until(
    probe: Callable[[], bool], *, timeout_s: float, check: Callable[[], None] = lambda: None
) -> None:
    """Ask until the answer is yes; `check` may raise to give up. Raises `NodeFailedError` when the time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        check()
        with contextlib.suppress(OSError, http.client.HTTPException, NodeFailedError):
            if probe():
                return
        if time.monotonic() > deadline:
            raise NodeFailedError("RabbitMQ was not ready in time")
        time.sleep(0.05)


def main() -> int:
    command = sys.argv[2:] if sys.argv[1:2] == ["--"] else []
    if sys.argv[1:] and not command:
        print("usage: python -m testing.rabbitmq.node [-- COMMAND...]", file=sys.stderr)
        return 2
    with RabbitNode() as node:
        if command:
            urls = {"LBG_BROKER": node.amqp_url, "LBG_MANAGEMENT": node.management_url}
            with subprocess.Popen(command, env=os.environ | urls) as process:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's, which may clean up
                return process.wait()
        print(f"AMQP        {node.amqp_url}\nmanagement  {node.management_url}\nCtrl-C ends it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
