"""Fixtures that every part's tests share."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import end_started
from support.embedded import EmbeddedBroker
from support.exploration import load_profile
from support.rabbit_installation import Installation, NodeFailedError
from support.rabbitmq import RabbitNode

load_profile()


def pytest_report_header() -> str:
    installation = Installation.of_environment()
    try:
        version = ".".join(map(str, installation.version))
    except NodeFailedError as error:
        return str(error)
    return f"RabbitMQ {version} under {installation.root}"


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitNode]:
    """One RabbitMQ node for the whole run; `rabbit_vhost` or `unique` names keep tests apart."""
    with RabbitNode(statistics_s=1) as node:
        yield node


@pytest.fixture
def rabbit_vhost(rabbitmq: RabbitNode) -> str:
    """The AMQP URL of an empty virtual host of the test's own."""
    return rabbitmq.new_vhost()


@pytest.fixture
def unique() -> str:
    """A name that no other test uses."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """An embedded broker that the tests of one file share."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """An embedded broker of the test's own, which it may freeze and kill."""
    with EmbeddedBroker(tmp_path / "data") as broker:
        yield broker


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """`lbg` as a process ends with the test that started it."""
    yield
    end_started()
