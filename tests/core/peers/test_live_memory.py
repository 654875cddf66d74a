"""Live memory tells what a process holds from garbage that nobody has collected, and from what malloc retains."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testing.http_fuzz import GROWTH_MAX
from testing.live_memory import LiveMemory, live_memory, observable

PROGRAM = """
import gc, sys
gc.disable()
held = []
print(flush=True)
for line in sys.stdin:
    exec(line)
    print(flush=True)
"""

Execute = Callable[[str], LiveMemory]


@pytest.fixture
def execute(process: None, tmp_path: Path) -> Iterator[Execute]:
    """Has a process of its own execute a line of Python; returns its live memory after that."""
    with (
        observable(tmp_path),
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        reader, writer = child.stdout, child.stdin

        def execute(line: str) -> LiveMemory:
            print(line, file=writer, flush=True)
            assert reader.readline()
            return live_memory(child.pid, tmp_path)

        assert reader.readline()
        yield execute
        writer.close()


def test_an_object_held_for_each_request_is_growth(execute: Execute) -> None:
    before = execute("pass")
    assert before.growth_to(execute("held += [object() for _ in range(20_000)]")) > GROWTH_MAX


def test_bytes_held_in_few_objects_are_growth(execute: Execute) -> None:
    before = execute("pass")
    assert before.growth_to(execute("held += [b'x' * 20_000_000]")) > GROWTH_MAX


def test_cycles_not_yet_collected_are_no_growth(execute: Execute) -> None:
    before = execute("pass")
    after = execute("for _ in range(100_000): one = []; one.append(one)")
    assert after.blocks < before.blocks + 1000


def test_free_memory_that_malloc_retains_is_no_growth(execute: Execute) -> None:
    """Free pieces of 4 kB, each beside one that is held."""
    before = execute("pass")
    after = execute("pieces = [bytes(4_000) for _ in range(20_000)]; held += pieces[::50]; del pieces")
    assert after.rss_mb < before.rss_mb + 20
