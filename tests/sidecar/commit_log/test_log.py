"""A commit log outlives its process, claims nothing that was not written, and says clearly why it is not opened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group import SequenceSet
from lbg_core.group.member_state import Positions
from lbg_sidecar import commit_log
from lbg_sidecar.commit_log import CommitLog, CommitsError
from lbg_sidecar.core.delivery import Processed
from testing.exploration import repetitions


def known(path: Path, *, streams_max: int = 65_536) -> dict[tuple[str, int], SequenceSet]:
    with closing(CommitLog(path, streams_max=streams_max)) as log:
        return {(publisher, hash_): SequenceSet(runs) for publisher, hash_, runs in log.streams()}


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 120)), max_size=150),
    st.lists(st.integers(0, 149), max_size=3),
)
def test_histories_with_restarts_never_claim_what_was_not_processed(
    adds: list[tuple[str, int, int]], restarts: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.commits"
        log, processed = reopened(path)
        for number, identity in enumerate(adds):
            if number in restarts:
                log.close()
                log, processed = reopened(path)
            processed.add(identity)
        log.close()
        found = {(*name, seq) for name, numbers in known(path).items() for seq in numbers}
    assert found <= set(adds)
    latest = {identity[:2]: identity for identity in adds}
    for name, stream in (
        (name, sorted(seq for *who, seq in set(adds) if tuple(who) == name)) for name in latest
    ):
        assert {(*name, seq) for seq in stream[-commit_log.RUNS_MAX :]} <= found


def reopened(path: Path) -> tuple[CommitLog, Processed]:
    log = CommitLog(path)
    processed = Processed(queue_count=1)
    processed.merge(Positions(log.streams()))
    processed.write = log.write
    return log, processed


@pytest.mark.process
def test_a_writer_killed_at_any_moment_is_remembered_to_its_last_write(tmp_path: Path) -> None:
    chance = random.Random(16)
    path = tmp_path / "m.commits"
    begins_at = 0
    for _ in range(repetitions(200, few=60)):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            write_until_killed(path, begins_at, writing)
        os.close(writing)
        told_bytes = len(os.read(reading, 1))
        time.sleep(chance.random() * 0.004)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while chunk := os.read(reading, 65_536):
            told_bytes += len(chunk)
        os.close(reading)
        numbers = known(path)["p", 7]
        assert numbers.runs() == [(0, numbers.floor)]
        last_told = begins_at + told_bytes - 1
        assert numbers.floor in (last_told, last_told + 1)
        begins_at = numbers.floor + 1


def write_until_killed(path: Path, seq: int, told: int) -> None:
    """Tells one byte after each write: the parent knows what must be there."""
    _, processed = reopened(path)
    while True:
        processed.add(("p", 7, seq))
        os.write(told, b".")
        seq += 1


def test_a_torn_record_leaves_the_one_before_it(tmp_path: Path) -> None:
    path = tmp_path / "m.commits"
    numbers = SequenceSet()
    with closing(CommitLog(path)) as log:
        for seq in (0, 1):
            numbers.add(seq)
            log.write("p", 3, numbers)
    whole = path.read_bytes()
    slot = whole.index(commit_log.packed_name(1, 3, b"p"))
    record = slot + commit_log.NAME_BYTES  # generation 2 lies in the first of the two
    for at in range(record, record + 20):
        torn = bytearray(whole)
        torn[at] ^= 0xFF
        path.write_bytes(torn)
        assert known(path)["p", 3].runs() == [(0, 0)]


def test_a_record_never_speaks_for_another_name(tmp_path: Path) -> None:
    path = tmp_path / "m.commits"
    with closing(CommitLog(path)) as log:
        log.write("p", 3, SequenceSet([(0, 9)]))
    other = commit_log.packed_name(1, 3, b"q")
    content = bytearray(path.read_bytes())
    slot = content.index(commit_log.packed_name(1, 3, b"p"))
    content[slot : slot + len(other)] = other
    path.write_bytes(content)
    assert known(path) == {}


def test_a_full_table_forgets_the_stream_that_was_idle_for_longest(tmp_path: Path) -> None:
    path = tmp_path / "m.commits"
    with closing(CommitLog(path, streams_max=2)) as log:
        for publisher in "abac":
            log.write(publisher, 0, SequenceSet([(0, 4)]))
    assert set(known(path, streams_max=2)) == {("a", 0), ("c", 0)}


def test_the_file_grows_past_its_first_slots(tmp_path: Path) -> None:
    path = tmp_path / "m.commits"
    with closing(CommitLog(path)) as log:
        for hash_ in range(600):
            log.write("p", hash_, SequenceSet([(0, hash_)]))
    assert {hash_: numbers.floor for (_, hash_), numbers in known(path).items()} == {n: n for n in range(600)}


def test_more_runs_than_fit_forget_the_lowest_and_keep_the_floor(tmp_path: Path) -> None:
    path = tmp_path / "m.commits"
    with closing(CommitLog(path)) as log:
        log.write("p", 0, SequenceSet([(0, 1), *((n, n) for n in range(10, 110, 2))]))
    numbers = known(path)["p", 0]
    assert numbers.floor == 1
    assert numbers.sparse_count == commit_log.RUNS_MAX
    assert numbers.highest == 108


@pytest.mark.process
def test_a_second_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.commits"
    with closing(CommitLog(path)):
        code = f"from lbg_sidecar.commit_log import CommitLog; CommitLog({str(path)!r})"
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert second.returncode != 0
    assert "is in use by another process: give each member a name of its own" in second.stderr


def test_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "m.commits"
    CommitLog(path).close()
    head = commit_log.packed_head(CommitLog.magic, commit_log.VERSION + 1)
    content = head + path.read_bytes()[len(head) :]
    path.write_bytes(content)
    with pytest.raises(CommitsError) as refused:
        CommitLog(path)
    assert str(refused.value) == (
        f"commit log {path} is of version 2, and this member reads version 1: upgrade this member, or move the file "
        "away, which only lets repeats through"
    )
    assert path.read_bytes() == content


def test_a_damaged_file_is_set_aside_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "m.commits"
    path.write_bytes(b"something else")
    assert known(path) == {}
    assert (tmp_path / "m.commits.damaged-1").read_bytes() == b"something else"
    assert "set aside as m.commits.damaged-1" in caplog.text
