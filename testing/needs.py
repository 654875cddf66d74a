"""A test's needs of the machine, as marks: what `make quick`, `make test` and `make test-all` select by.

A test has the mark `process` if one of its fixtures asks for the fixture `process`, if it runs on a server of the run
(`SERVERS`), or if it says so. No process starts in a test without the mark.

A test has the mark `slow` if it says so, if its seed is not the first (`testing.exploration.over_seeds`), or if
it repeats on RabbitMQ what it shows on the embedded broker: the tests that run on RabbitMQ alone are what `make test`
asks of RabbitMQ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from testing import ROOT

TESTS = ROOT / "tests"
COMPARED = (TESTS / "oracle", TESTS / "rabbitmq")
"""Folders whose subject is RabbitMQ itself."""

INSTALLATIONS = TESTS / "testing"
"""The folder about simulations and small runs of whole installations, whose files are the longest."""

SERVERS = ("rabbitmq", "spark", "postgres", "installed")
"""Fixtures and marks of what a run makes once: a node, a JVM, a database server, an installation."""

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
"""Events of the interpreter's audit with which every process begins ("Audit events table" of Python)."""
FONT_LISTS = {"fc-list", "system_profiler"}
"""Programs that matplotlib starts once for each user, at its first import, to fill its cache of fonts."""

_unmarked: str | None = None
"""The test that runs, if it has no mark `process`."""


class UnmarkedProcessError(AssertionError):
    """A test started a process that it has no mark for."""


def mark(item: pytest.Function) -> None:
    """Adds the marks that follow from a test's fixtures, its parameters and its other marks."""
    if "rabbitmq" in texts(item):
        item.add_marker(pytest.mark.rabbitmq)
    for server in SERVERS:
        if server in item.fixturenames:
            item.add_marker(server)
    if "process" in item.fixturenames or any(map(item.get_closest_marker, SERVERS)):
        item.add_marker(pytest.mark.process)


def share(item: pytest.Item) -> str | None:
    """The server that the test needs, of those of which a run has one; None if it needs none, or has its own node.

    A node serves the tests of RabbitMQ itself or all others: one after the other they would last longer than the run.
    """
    needed = next(filter(item.get_closest_marker, SERVERS), None)
    if needed != "rabbitmq":
        return needed
    if not isinstance(item, pytest.Function) or needed not in (*item.fixturenames, *texts(item)):
        return None
    return " ".join([needed, *(folder.name for folder in COMPARED if item.path.is_relative_to(folder))])


def put_long_first(items: list[pytest.Item]) -> None:
    """Sorts tests so that short ones are left for the end: of a server, of whole installations, of a process."""

    def rank(item: pytest.Item) -> int:
        needed = share(item)
        if needed is not None:
            return SERVERS.index(needed.split()[0])
        if item.path.is_relative_to(INSTALLATIONS):
            return len(SERVERS)
        return len(SERVERS) + (1 if item.get_closest_marker("process") else 2)

    items.sort(key=rank)


def mark_repetitions(items: Sequence[pytest.Function]) -> None:
    """Adds `slow` to the variants on RabbitMQ of tests that are among `items` on the embedded broker too."""
    on_embedded = {(item.path, item.originalname) for item in items if "embedded" in texts(item)}
    for item in items:
        if "rabbitmq" in texts(item) and (item.path, item.originalname) in on_embedded:
            item.add_marker(pytest.mark.slow)


def repeated(values: Iterable[object]) -> list[Any]:
    """Parameters of which the first shows what the test is about; the others are slow repetitions."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=(pytest.mark.slow,) if n else ()
        )
        for n, value in enumerate(values)
    ]


def texts(item: pytest.Function) -> list[str]:
    """The parameters of a test that are texts: an engine is one."""
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return [one for one in given if isinstance(one, str)]


@contextmanager
def watched(item: pytest.Item) -> Iterator[None]:
    """While the test runs, no process starts unless the test has the mark."""
    global _unmarked
    _unmarked = None if item.get_closest_marker("process") else item.nodeid
    try:
        yield
    finally:
        _unmarked = None


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if _unmarked is not None and event in STARTS and arguments[0] not in FONT_LISTS:
        raise UnmarkedProcessError(f"{_unmarked} starts {arguments[:1]} and has no mark `process`")


sys.addaudithook(_refuse)
