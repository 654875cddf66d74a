"""`lbg broker serve` as a pod runs it: TLS, an administrator by files, a signal at the end."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pytest
import trustme

from lbg_broker.store.schema import DirectoryLock
from testing.command_line import Lbg, Said, start_lbg
from testing.kubernetes.mounted import MountedSecret
from testing.output_documents import check_output
from testing.waiting import GUARD_S


@dataclass(frozen=True)
class Pod:
    process: subprocess.Popen[str]
    broker: str
    management: str
    cafile: Path

    @property
    def options(self) -> tuple[str, ...]:
        return ("--broker", self.broker, "--management", self.management, "--cafile", str(self.cafile))

    def connect(self) -> pika.BlockingConnection:
        parameters = pika.URLParameters(self.broker)
        parameters.ssl_options = pika.SSLOptions(
            ssl.create_default_context(cafile=self.cafile), parameters.host
        )
        return pika.BlockingConnection(parameters)


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    tls = MountedSecret(
        tmp_path / "tls",
        tls_crt=issued.cert_chain_pems[0].bytes(),
        tls_key=issued.private_key_pem.bytes(),
        ca_crt=authority.cert_pem.bytes(),
    )
    login = MountedSecret(tmp_path / "login", username="ops", password="s3cret")
    files = {
        "LBG_ADMIN_USERNAME_FILE": str(login / "username"),
        "LBG_ADMIN_PASSWORD_FILE": str(login / "password"),
    }
    process = start_lbg(
        *("broker", "serve", "--json", "--data-dir", str(tmp_path / "data")),
        *("--listen", "127.0.0.1:0", "--management", "127.0.0.1:0"),
        *("--certfile", str(tls / "tls.crt"), "--keyfile", str(tls / "tls.key")),
        environment=files,
    )
    assert process.stdout is not None
    said = {name: url.rpartition(":")[2] for name, url in json.loads(process.stdout.readline()).items()}
    broker = f"amqps://ops:s3cret@localhost:{said['amqp']}/"
    return Pod(process, broker, f"https://localhost:{said['management']}", tls / "ca.crt")


@pytest.mark.process
def test_the_administrator_makes_a_group_over_tls_and_guest_does_not_exist(pod: Pod, lbg: Lbg) -> None:
    created = lbg("group", "create", "orders", *pod.options)
    assert created.status == 0, created.err
    shown = json.loads(lbg("group", "show", "orders", "--json", *pod.options).out)
    assert shown["problems"] == []
    guest = pod.broker.replace("ops:s3cret", "guest:guest")
    refused = lbg("group", "list", "--broker", guest, "--management", pod.management, *pod.options[4:])
    assert refused.status == 1
    assert pod.process.poll() is None


def _consume_for_ever(connection: pika.BlockingConnection) -> None:
    while True:
        connection.process_data_events(1)


@pytest.mark.process
def test_a_signal_ends_it_at_once_although_clients_are_connected_and_a_queue_is_long(pod: Pod) -> None:
    with pod.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        for _ in range(50):
            channel.basic_publish("", "q", b"x" * 1000)
        channel.basic_consume("q", lambda *_: None)
        pod.process.send_signal(signal.SIGTERM)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="shutdown"):
            _consume_for_ever(connection)
        _, err = pod.process.communicate(timeout=GUARD_S)
    assert pod.process.returncode == 0
    assert "s3cret" not in err
    assert "Traceback" not in err


@pytest.mark.process
@pytest.mark.parametrize("by_option", [True, False])
def test_messages_without_a_group_are_of_the_group_that_it_was_told(tmp_path: Path, by_option: bool) -> None:
    process = start_lbg(
        *("broker", "serve", "--json", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"),
        *("--no-management", *(("--default-message-group", "EMPTY") if by_option else ())),
        environment={} if by_option else {"LBG_DEFAULT_MESSAGE_GROUP": "EMPTY"},
    )
    assert process.stdout is not None
    port = json.loads(process.stdout.readline())["amqp"].rpartition(":")[2]
    with pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@127.0.0.1:{port}/")) as connection:
        channel = connection.channel()
        channel.queue_declare("q", arguments={"x-group-header": "cart"})
        for headers in ({"cart": "EMPTY"}, {}, {"cart": "qpid.no-group"}):
            channel.basic_publish("", "q", json.dumps(headers), pika.BasicProperties(headers=headers))
        fetched = [channel.basic_get("q")[2] for _ in range(3)]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=GUARD_S)
    assert fetched == [b'{"cart": "EMPTY"}', b'{"cart": "qpid.no-group"}', None]


def test_a_default_group_without_a_name_is_refused(tmp_path: Path, lbg: Lbg) -> None:
    refused = lbg("broker", "serve", "--data-dir", str(tmp_path / "data"), "--default-message-group", "")
    assert refused.status == 2
    assert "--default-message-group: a group's name is not empty" in refused.err
    assert not (tmp_path / "data").exists()


FREE = ("--listen", "127.0.0.1:0", "--management", "127.0.0.1:0")


def said_by(*arguments: str) -> Said:
    """By `lbg` in a process of its own, as it leaves another one behind."""
    process = start_lbg(*arguments)
    out, err = process.communicate(timeout=GUARD_S)
    check_output(arguments, out)
    return Said(process.returncode, out, err)


@pytest.fixture
def detached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Output of `lbg broker serve --detach -o json`; its data directory is ./data."""
    monkeypatch.chdir(tmp_path)
    begun = said_by("broker", "serve", "--data-dir", "data", "--detach", "-o", "json", *FREE)
    assert begun.status == 0, begun.err
    ready = json.loads(begun.out)
    try:
        yield ready
    finally:
        with suppress(ProcessLookupError):
            os.kill(ready["pid"], signal.SIGKILL)


@pytest.mark.process
def test_a_detached_broker_listens_when_the_command_returns_and_stop_waits_for_its_end(
    detached: dict[str, Any],
) -> None:
    with pika.BlockingConnection(pika.URLParameters(detached["amqp"])) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True)
        channel.basic_publish("", "kept", b"x", pika.BasicProperties(delivery_mode=2))
    assert detached["log"] == "data/broker.log"
    assert "listening on" in Path("data/broker.log").read_text()
    stopped = said_by("broker", "stop", "--data-dir", "data")
    assert stopped.status == 0
    assert stopped.err == f"the broker on data (process {detached['pid']}) has ended\n"
    DirectoryLock(Path("data")).release()  # free when the command returned
    again = said_by("broker", "serve", "--data-dir", "data", "--detach", *FREE)
    assert again.status == 0
    assert again.out.startswith("listening: amqp://127.0.0.1:")
    assert again.err.endswith("log data/broker.log; stop it: lbg broker stop --data-dir data\n")
    with pika.BlockingConnection(pika.URLParameters(again.out.split()[1].rstrip(","))) as connection:
        assert connection.channel().queue_declare("kept", passive=True).method.message_count == 1
    last = json.loads(said_by("broker", "stop", "--data-dir", "data", "-o", "json").out)
    assert (last["action"], last["data_dir"]) == ("stopped", "data")


@pytest.mark.process
def test_a_detached_broker_that_cannot_start_gives_its_reason_and_status(
    detached: dict[str, Any],
) -> None:
    second = said_by("broker", "serve", "--data-dir", "data", "--detach", *FREE)
    assert second.status == 1
    assert second.out == ""
    (line,) = second.err.splitlines()
    assert line == (
        f"lbg: error: the data directory data is in use by another broker (process {detached['pid']})"
    )


def test_stop_without_a_broker_says_so(lbg: Lbg, tmp_path: Path) -> None:
    for directory in (tmp_path / "missing", tmp_path):
        stopped = lbg("broker", "stop", "--data-dir", str(directory))
        assert stopped.status == 1
        assert stopped.err == f"lbg: error: no broker runs on {directory}\n"
    DirectoryLock(tmp_path).release()
    assert "no broker runs" in lbg("broker", "stop", "--data-dir", str(tmp_path)).err


def test_stop_ends_no_process_that_does_not_have_the_directory(lbg: Lbg, tmp_path: Path) -> None:
    """The directory may be that of a container, where the number is another process."""
    lock = DirectoryLock(tmp_path)
    (tmp_path / "lock").write_text(f"{os.getppid()}\n")
    stopped = lbg("broker", "stop", "--data-dir", str(tmp_path))
    assert stopped.status == 1
    assert stopped.err.endswith(
        f"the broker that uses {tmp_path} is a process of another machine or container\n"
    )
    lock.release()
