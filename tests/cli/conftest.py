"""Both brokers, and a way to run `lbg` in this process."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lbg_core.group import GroupSpec
from lbgroup.cli import cli
from lbgroup.commands import run
from testing.admin.group_on_broker import declare_group
from testing.command_line import Lbg, Said, Where, clean_environment
from testing.output_documents import check_output, checked
from testing.rabbitmq.node import RabbitNode
from testing.waiting import GUARD_S


@pytest.fixture
def lbg(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lbg:
    """`lbg("group", "list")` in this process, without the environment of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("LBG_")]:
        monkeypatch.delenv(name)

    def call(*arguments: str) -> Said:
        capfd.readouterr()
        status = run(cli, list(arguments))
        out, err = capfd.readouterr()
        check_output(arguments, out)
        return Said(status, out, err)

    return call


@pytest.fixture(scope="session")
def served(process: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Where]:
    """One `lbg broker serve` for all tests, whose groups have names of their own."""
    with serving(tmp_path_factory.mktemp("broker")) as where:
        yield where


@pytest.fixture(scope="module", params=["embedded", "rabbitmq"])
def broker(process: None, request: pytest.FixtureRequest) -> Where:
    """Each engine in turn: the embedded broker, and a virtual host of RabbitMQ."""
    if request.param == "rabbitmq":
        node: RabbitNode = request.getfixturevalue("rabbitmq")
        return Where(node.new_vhost(), node.management_url)
    served: Where = request.getfixturevalue("served")
    return served


@contextmanager
def serving(directory: Path) -> Iterator[Where]:
    serve = ("broker", "serve", "--json", "--data-dir", str(directory / "data"))
    process = subprocess.Popen(
        [sys.executable, "-m", "lbgroup", *serve, "--listen", "127.0.0.1:0", "--management", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=clean_environment(),
    )
    assert process.stdout is not None
    said = checked("broker serve", process.stdout.readline())
    yield Where(
        said["amqp"].replace("://", "://guest:guest@"), said["management"].replace("://", "://guest:guest@")
    )
    process.terminate()
    assert process.wait(timeout=GUARD_S) == 0
    process.stdout.close()


@pytest.fixture
def group(broker: Where) -> str:
    name = f"g{secrets.token_hex(4)}"
    spec = GroupSpec(name, name, hash_count=20, queue_count=2, queue_size_mb=1, client_username="guest")
    asyncio.run(declare_group(broker.broker, spec))
    return name


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text("s3cret-word\n")
    return file
