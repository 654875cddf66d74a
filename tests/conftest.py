"""Fixtures that every part's tests share."""

from __future__ import annotations

import gc
import json
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from testing import needs
from testing.broker.embedded import EmbeddedBroker
from testing.command_line import end_started
from testing.exploration import SEED, load_profile
from testing.fork_server import install
from testing.rabbitmq.installation import Installation, NodeFailedError
from testing.rabbitmq.node import RabbitNode

if TYPE_CHECKING:
    from testing.sidecar.postgres import PostgresServer

load_profile()
install()
gc.disable()  # no object of a collection is garbage, and there are a million: `pytest_collection_finish` enables it

NODE = pytest.StashKey[RabbitNode]()
SHARES_FILE = pytest.StashKey[Path]()

for _number in (signal.SIGHUP, signal.SIGINT):
    # `nohup`, or a shell that runs this in the background, has the signal ignored, and so would all that tests start.
    # A handler ignores it too, but no other program inherits it. A worker of such a run does as the run does.
    if signal.getsignal(_number) is signal.SIG_IGN or (
        _number is signal.SIGHUP and "PYTEST_XDIST_WORKER" in os.environ
    ):
        signal.signal(_number, lambda *_: None)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, object, object]:
    """Marks what each test needs, before `-m` selects, and puts those first that wait the longest.

    A test that starts a process or a node of its own says so itself.
    """
    tests = [item for item in items if isinstance(item, pytest.Function)]
    for item in tests:
        needs.mark(item)
    needs.mark_repetitions(tests)
    result = yield
    if SEED not in os.environ:
        needs.put_long_first(items)
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadfile":
        return None
    from testing.shares import Shares

    return Shares(config, log, config.stash[SHARES_FILE])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Gives each process of a run the place where it reports which test needs which server."""
    if SHARES_FILE not in node.config.stash:
        node.config.stash[SHARES_FILE] = Path(tempfile.mkdtemp(prefix="lbg-tests-"), "shares.json")
    node.workerinput["shares_file"] = str(node.config.stash[SHARES_FILE])


def pytest_unconfigure(config: pytest.Config) -> None:
    if SHARES_FILE in config.stash:
        shutil.rmtree(config.stash[SHARES_FILE].parent)


@pytest.hookimpl(tryfirst=True)  # before the tests themselves are reported
def pytest_collection_finish(session: pytest.Session) -> None:
    """Leaves the tests themselves out of every later garbage collection: they live until the run ends."""
    if hasattr(session.config, "workerinput"):
        shares = {item.nodeid: share for item in session.items if (share := needs.share(item))}
        Path(session.config.workerinput["shares_file"]).write_text(json.dumps(shares))
    gc.enable()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Refuses processes and nodes to tests without the mark, which other targets would run or leave out."""
    RabbitNode.may_start = item.get_closest_marker("rabbitmq") is not None
    try:
        with needs.watched(item):
            return (yield)
    finally:
        RabbitNode.may_start = True


@pytest.fixture(scope="session")
def process() -> None:
    """Asked for by every fixture that starts a process: its tests have the mark `process`."""


def pytest_report_header() -> str:
    installation = Installation.of_environment()
    try:
        version = ".".join(map(str, installation.version))
    except NodeFailedError as error:
        return str(error)
    return f"RabbitMQ {version} under {installation.root}"


@pytest.fixture(scope="session")
def rabbitmq(process: None, pytestconfig: pytest.Config) -> Iterator[RabbitNode]:
    """One RabbitMQ node for all tests of a process; `rabbit_vhost` or `unique` names keep them apart."""
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


@pytest.fixture(scope="session")
def postgres(process: None) -> Iterator[PostgresServer]:
    """One PostgreSQL for the whole run; each test has a database of its own."""
    from testing.sidecar.postgres import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture
def unique() -> str:
    """A name that no other test uses."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def embedded(process: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One embedded broker for all tests, whose groups and queues have names of their own."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.fixture
def own_broker(process: None, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """An embedded broker of the test's own, which it may freeze and kill."""
    with EmbeddedBroker(tmp_path / "data") as broker:
        yield broker


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """`lbg` as a process ends with the test that started it."""
    yield
    end_started()
