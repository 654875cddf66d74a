"""Fixtures that every part's tests share."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from support.rabbit_installation import Installation, NodeFailedError
from support.rabbitmq import RabbitNode


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
