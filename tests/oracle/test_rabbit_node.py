"""The private RabbitMQ node that the embedded broker is measured against."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pika
import pytest

from testing import ROOT
from testing.broker.engines import eventually
from testing.rabbitmq.node import NodeFailedError, RabbitNode
from testing.waiting import GUARD_S

pytestmark = [pytest.mark.rabbitmq, pytest.mark.slow]

START_ONE_AND_STAY = """
import pathlib, signal, sys
from testing.rabbitmq.node import RabbitNode
node = RabbitNode(directory=pathlib.Path(sys.argv[1]))
node.spawn()
print(node.pid, flush=True)
signal.pause()
"""


def run_python(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT)


def is_alive(pid: int) -> bool:
    try:
        return b"beam" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False


def test_a_node_keeps_durable_queues_when_it_is_killed_and_started_again() -> None:
    with RabbitNode() as node:
        with pika.BlockingConnection(pika.URLParameters(node.amqp_url)) as connection:
            connection.channel().queue_declare("kept", durable=True)
        node.evaluate("catch mnesia:sync_log()")  # it writes declarations to disk up to 2 s late
        node.kill()
        node.start()
        with pika.BlockingConnection(pika.URLParameters(node.amqp_url)) as connection:
            assert connection.channel().queue_declare("kept", passive=True).method.queue == "kept"


def test_virtual_hosts_keep_tests_apart(rabbit_vhost: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(rabbit_vhost)) as connection:
        assert connection.channel().queue_declare("q", durable=True).method.message_count == 0


def test_a_node_is_controlled_and_says_why_it_refuses(rabbitmq: RabbitNode) -> None:
    assert rabbitmq.name in rabbitmq.control("status")
    assert rabbitmq.evaluate("1 + 2").strip() == "3"
    with pytest.raises(NodeFailedError, match="rabbitmqctl delete_queue failed"):
        rabbitmq.control("delete_queue", "no such queue")


def test_a_frozen_node_answers_nothing_until_it_thaws(rabbitmq: RabbitNode) -> None:
    rabbitmq.freeze()
    try:
        with pytest.raises(TimeoutError), rabbitmq.dial(timeout_s=0.5) as silent:
            silent.recv(1)
    finally:
        rabbitmq.thaw()
    with rabbitmq.dial(timeout_s=GUARD_S) as answering:
        assert answering.recv(1) == b"\x01"


def test_a_node_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    with run_python("-c", START_ONE_AND_STAY, str(tmp_path)) as starter:
        assert starter.stdout is not None
        node = int(starter.stdout.readline())
        assert eventually(lambda: is_alive(node))
        starter.send_signal(signal.SIGKILL)
    assert eventually(lambda: not is_alive(node))


def test_a_command_is_given_a_node_of_its_own_and_its_status_comes_back() -> None:
    command = "import os, sys; print(os.environ['LBG_BROKER'], os.environ['LBG_MANAGEMENT']); sys.exit(7)"
    with run_python("-m", "testing.rabbitmq.node", "--", sys.executable, "-c", command) as run:
        output, _ = run.communicate(timeout=GUARD_S)
    assert run.returncode == 7
    assert output.startswith("amqp://guest:guest@127.0.0.1:")
    assert "http://guest:guest@127.0.0.1:" in output
