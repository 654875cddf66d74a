"""Progress of a job on a terminal."""

from __future__ import annotations

import io

import pytest


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Progress, Tasks
    from lbg_pipeline.spark.jobs import Progress, Tasks


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_elsewhere_than_on_a_terminal_a_line_is_written_now_and_then() -> None:
    stream = io.StringIO()
    progress = Progress(stream, started_s=100)
    progress.begin("reading")
    for now_s in (101, 109, 111, 112, 121):
        progress.show(Tasks(3, 8), now_s=now_s)
    progress.end()
    assert stream.getvalue() == "reading …\nreading: 3/8 tasks, 11 s\nreading: 3/8 tasks, 21 s\n"


def test_a_terminal_has_a_bar_that_is_gone_at_the_end() -> None:
    stream = Terminal()
    progress = Progress(stream, started_s=0)
    progress.begin("reading")
    progress.show(Tasks(1, 2), now_s=1)
    progress.end()
    shown, gone = stream.getvalue().split("\r\x1b[K")[1:]
    assert shown == "reading " + "█" * 15 + "░" * 15 + " 1/2 tasks, 1 s"
    assert gone == ""


def test_nothing_is_shown_while_nothing_runs() -> None:
    stream = Terminal()
    Progress(stream, started_s=0).show(Tasks(0, 0), now_s=5)
    assert stream.getvalue() == ""
