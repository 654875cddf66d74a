"""Position of a session in a file: its content after a death at any point, and its session."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from lbg_sidecar.commit_log import RECORDS_AT, VERSION, CommitsError, PositionFile, packed_head
from testing import ROOT, program

SIZE_BYTES = PositionFile.size_bytes

WRITER = """
import sys
from pathlib import Path
from lbg_sidecar.commit_log import PositionFile
file = PositionFile(Path(sys.argv[1]), group="g", session="s")
number = file.committed or 0
while True:
    number += 1
    file.write(number)
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""


def opened(path: Path, *, group: str = "g", session: str = "s") -> PositionFile:
    return PositionFile(path, group=group, session=session)


def said(path: Path, **who: str) -> int | None:
    file = opened(path, **who)
    file.close()
    return file.committed


def test_a_new_file_says_nothing(tmp_path: Path) -> None:
    assert said(tmp_path / "deep" / "down" / "p") is None
    assert said(tmp_path / "deep" / "down" / "p") is None


def test_the_last_number_is_found_again(tmp_path: Path) -> None:
    file = opened(tmp_path / "p")
    for number in (1, 2, 3, 2**62):
        file.write(number)
    file.close()
    assert said(tmp_path / "p") == 2**62


def test_a_lower_number_counts_when_it_was_written_later(tmp_path: Path) -> None:
    file = opened(tmp_path / "p")
    file.write(300)
    file.write(7)
    file.close()
    assert said(tmp_path / "p") == 7


def test_that_a_session_is_over_is_found_again_until_the_next_begins(tmp_path: Path) -> None:
    file = opened(tmp_path / "p")
    for committed, is_over in ((7, False), (8, True), (0, False)):
        file.write(committed, is_over=is_over)
        file.close()
        file = opened(tmp_path / "p")
        assert (file.committed, file.is_over) == (committed, is_over)
    file.close()


def test_the_epoch_of_a_number_is_found_again(tmp_path: Path) -> None:
    file = opened(tmp_path / "p")
    file.write(7, epoch="C0WvEMT0RmXWoLuPB5mK8A")
    file.close()
    file = opened(tmp_path / "p")
    assert (file.committed, file.epoch, file.is_over) == (7, "C0WvEMT0RmXWoLuPB5mK8A", False)
    file.write(8)
    file.close()
    file = opened(tmp_path / "p")
    assert (file.committed, file.epoch) == (8, None)
    file.close()


@pytest.mark.process
def test_kill_9_leaves_the_last_number_that_was_told(tmp_path: Path) -> None:
    path, before = tmp_path / "p", 0
    for _ in range(3):
        process = subprocess.Popen(
            program.command(WRITER, str(path)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(50)]
        process.send_signal(signal.SIGKILL)
        told += [int(line) for line in process.stdout if line.endswith("\n")]
        process.wait()
        process.stdout.close()
        found = said(path)
        assert found is not None
        assert told[0] == before + 1
        assert told[-1] <= found <= told[-1] + 1
        before = found


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_record_that_is_torn_leaves_the_one_before(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "p"
    file = opened(path)
    file.write(41)
    file.write(42)
    file.close()
    written = bytearray(path.read_bytes())
    latest = RECORDS_AT[0]  # of generation 2
    written[latest + cut : latest + 20] = b"\xff" * (20 - cut)
    path.write_bytes(written)
    assert said(path) == 41


def test_a_file_of_another_session_is_not_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "p"
    file = opened(path, session="a/b")
    file.write(300)
    file.close()
    with caplog.at_level(logging.WARNING):
        assert said(path, session="a-b") is None
    assert "another session's" in caplog.text
    assert said(path.with_name("p.damaged-1"), session="a/b") == 300
    assert said(path, session="a-b") is None


@pytest.mark.parametrize(
    "garbage", [b"x" * 500, PositionFile.magic, b"\0" * 63 + b"x", random.Random(1).randbytes(SIZE_BYTES)]
)
def test_a_damaged_file_is_set_aside(
    tmp_path: Path, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "p"
    path.write_bytes(garbage)
    file = opened(path)
    assert file.committed is None
    file.write(5)
    file.close()
    assert said(path) == 5
    assert "damaged" in caplog.text


def test_a_file_that_is_all_zeros_was_never_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "p").write_bytes(bytes(SIZE_BYTES))
    assert said(tmp_path / "p") is None
    assert not caplog.text


@pytest.mark.parametrize(("end", "committed"), [(RECORDS_AT[1] + 61, 3), (RECORDS_AT[1], 2)])
def test_a_file_that_was_cut_behind_a_record_is_extended(
    tmp_path: Path, end: int, committed: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "p"
    file = opened(path)
    for number in (1, 2, 3):
        file.write(number)
    file.close()
    path.write_bytes(path.read_bytes()[:end])
    file = opened(path)
    assert file.committed == committed
    file.write(4)
    file.write(5)
    file.close()
    assert said(path) == 5
    assert not caplog.text


def test_a_file_that_was_cut_behind_its_head_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(packed_head(PositionFile.magic))
    assert said(tmp_path / "p") is None
    assert (tmp_path / "p.damaged-1").exists()


def test_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    content = packed_head(PositionFile.magic, VERSION + 1).ljust(SIZE_BYTES, b"\0")
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(CommitsError) as refused:
        opened(tmp_path / "p")
    assert str(refused.value) == (
        f"position file {tmp_path / 'p'} is of version 2, and this member reads version 1: upgrade this member, or "
        "move the file away: the broker then continues after acknowledged messages"
    )
    assert (tmp_path / "p").read_bytes() == content


def test_one_process_at_a_time(tmp_path: Path) -> None:
    file = opened(tmp_path / "p")
    with pytest.raises(CommitsError, match="in use by another process"):
        opened(tmp_path / "p")
    file.close()


def test_a_file_system_that_maps_no_files_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(mmap, "mmap", refused)
    with pytest.raises(CommitsError, match="cannot be used: No such device; name another directory, or none"):
        opened(tmp_path / "p")


def test_a_directory_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommitsError, match="cannot be used: File exists; name another"):
        opened(tmp_path / "file" / "p")
