"""Fixtures that every part's tests share."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from support.broker.embedded import EmbeddedBroker
from support.command_line import end_started
from support.exploration import load_profile
from support.rabbitmq.installation import Installation, NodeFailedError
from support.rabbitmq.node import RabbitNode

load_profile()

RABBITMQ_TIMEOUT_S = 300
"""Of a test on a RabbitMQ node, which may have to start it (`support.rabbitmq.node.START_S`)."""

NODE = pytest.StashKey[RabbitNode]()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what runs on a RabbitMQ node; a test that starts one of its own says so itself."""
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        given = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if any(isinstance(one, str) and one == "rabbitmq" for one in (*item.fixturenames, *given)):
            item.add_marker(pytest.mark.rabbitmq)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(RABBITMQ_TIMEOUT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Lets nobody start a node without the mark: `make test-rabbitmq4` would leave that test out."""
    RabbitNode.may_start = item.get_closest_marker("rabbitmq") is not None
    try:
        return (yield)
    finally:
        RabbitNode.may_start = True


def pytest_report_header() -> str:
    installation = Installation.of_environment()
    try:
        version = ".".join(map(str, installation.version))
    except NodeFailedError as error:
        return str(error)
    return f"RabbitMQ {version} under {installation.root}"


@pytest.fixture(scope="session")
def rabbitmq(pytestconfig: pytest.Config) -> Iterator[RabbitNode]:
    """One RabbitMQ node for the whole run; `rabbit_vhost` or `unique` names keep tests apart."""
    with RabbitNode(statistics_s=1) as node:
        pytestconfig.stash[NODE] = node
        yield node


@pytest.fixture(autouse=True)
def _node_runs(pytestconfig: pytest.Config) -> Iterator[None]:
    """A test that fails while it has stopped the node of all leaves it to the next one as it was."""
    yield
    node = pytestconfig.stash.get(NODE, None)
    if node is not None and not node.runs:
        node.kill()
        node.start()


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
