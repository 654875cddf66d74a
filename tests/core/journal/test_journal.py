from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import FrameType

import pytest

from lbg_core.group import DeliveredRecord, PublishedRecord
from lbg_core.journal import (
    DirectoryUnusable,
    JournalReader,
    JournalSettings,
    JournalWriter,
    UnreadableRecord,
    WriteFailed,
    closed_files,
    flush_regularly,
)
from testing.waiting import GUARD_S

MOST_CALLS = 20
"""Of functions for a record that is appended, on average."""


def record(seq: int) -> PublishedRecord:
    return PublishedRecord("p", "k", 3, 1, seq, 1_000_000, 1_000_500, 0, "orders", 62)


def seqs(source: Path) -> list[int]:
    return [each.seq for each in JournalReader(source)]


def test_a_file_is_seen_only_when_it_is_closed(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "deep" / "journal", "published-x") as writer:
        writer.append(record(0))
        writer.flush()
        assert closed_files(writer.directory) == []
        assert [name[0] for name in os.listdir(writer.directory)] == ["."]
    (file,) = closed_files(writer.directory)
    assert file.name.startswith("published-x-")
    assert list(JournalReader(writer.directory)) == [record(0)]
    assert list(JournalReader(file)) == [record(0)]


def test_records_of_both_kinds_come_back_as_they_were(tmp_path: Path) -> None:
    delivered = DeliveredRecord(
        *("p", None, 3, 1, 7, 10, 2, "m ü", "f00", 9, True, 11, None, None, None, 0, "released"),
        *(None, None, "orders", 62),
    )
    with JournalWriter(tmp_path, "m") as writer:
        writer.append(record(1))
        writer.append(delivered)
    assert list(JournalReader(tmp_path)) == [record(1), delivered]


def test_files_are_closed_by_size_and_read_in_order(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, "p", settings=JournalSettings(buffer_records=10, file_max_bytes=4000)) as w:
        for seq in range(500):
            w.append(record(seq))
    assert len(closed_files(tmp_path)) > 5
    assert seqs(tmp_path) == list(range(500))
    assert w.records == 500


def test_files_are_closed_by_age_at_a_flush(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, "p", settings=JournalSettings(file_max_age_s=0))
    writer.append(record(0))
    writer.flush()
    assert seqs(tmp_path) == [0]
    writer.close()
    assert len(closed_files(tmp_path)) == 1, "no empty file"


async def test_records_reach_the_file_on_time_without_further_records(tmp_path: Path) -> None:
    flushed = asyncio.Event()

    class Watched(JournalWriter):
        def flush(self) -> None:
            super().flush()
            flushed.set()

    writer = Watched(tmp_path, "p", settings=JournalSettings(file_max_age_s=0))
    writer.append(record(0))
    flushing = asyncio.create_task(flush_regularly(writer, interval_s=0.001))
    await asyncio.wait_for(flushed.wait(), GUARD_S)
    flushing.cancel()
    assert seqs(tmp_path) == [0]


@pytest.mark.process
def test_a_killed_writers_file_is_cut_after_its_last_whole_line_and_closed_at_the_next_start(
    tmp_path: Path,
) -> None:
    script = """
        import sys
        from lbg_core.group import PublishedRecord
        from lbg_core.journal import JournalSettings, JournalWriter
        writer = JournalWriter(sys.argv[1], "p", settings=JournalSettings(buffer_records=7))
        for seq in range(10**9):
            writer.append(PublishedRecord("p", "k", 3, 1, seq, 1, 2, 0, "orders", 62))
            if seq == 5000:
                print("going", flush=True)
    """
    arguments = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    live = JournalWriter(tmp_path, "other")
    assert live.recovered == [], "the file of a living writer is left alone"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    (leftover,) = tmp_path.glob(".p-*")
    with leftover.open("ab") as file:
        file.write(b'{"v":1,"kind":"publ')
    again = JournalWriter(tmp_path, "p")
    assert [path.name for path in again.recovered] == [leftover.name[1:].removesuffix(".open")]
    found = seqs(tmp_path)
    assert len(found) >= 5000 - 7, "what was still in the buffer"
    assert found == list(range(len(found)))


def test_a_leftover_of_another_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".p-20260101T000000000000Z-000000.jsonl.open").write_text("{}\n")
    opened = os.open

    def refused(path: Path, flags: int, *more: int) -> int:
        if not flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", refused)
    with JournalWriter(tmp_path, "p") as writer:
        assert writer.recovered == []
        writer.append(record(0))
    assert seqs(tmp_path) == [0]


def test_an_empty_leftover_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".p-20200101T000000000000Z-000001.jsonl.open").write_bytes(b"half a line")
    assert JournalWriter(tmp_path, "p").recovered == []
    assert list(tmp_path.iterdir()) == []


def _with_limit(script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """A file may grow to 3000 bytes, then a write is cut short and the next fails, as on a full disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))

    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(directory)],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.process
def test_a_full_disk_is_told_once_counted_and_does_not_stop_the_owner(tmp_path: Path) -> None:
    script = """
        import resource, sys
        from lbg_core.group import PublishedRecord
        from lbg_core.journal import JournalSettings, JournalWriter
        writer = JournalWriter(
            sys.argv[1], "p", settings=JournalSettings(buffer_records=5), on_problem=lambda line: print(line)
        )
        for seq in range(200):
            writer.append(PublishedRecord("p", "k", 3, 1, seq, 1, 2, 0, "orders", 62))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for seq in range(200, 300):
            writer.append(PublishedRecord("p", "k", 3, 1, seq, 1, 2, 0, "orders", 62))
        writer.close()
        print(writer.records, writer.lost_records)
    """
    *problems, counts = _with_limit(script, tmp_path).stdout.splitlines()
    assert len(problems) == 2
    assert "cannot write the journal" in problems[0]
    assert "written again" in problems[1]
    records, lost = map(int, counts.split())
    assert records + lost == 300
    assert 0 < lost < 200
    assert len(seqs(tmp_path)) == records, "no half line anywhere"


@pytest.mark.process
def test_a_full_disk_stops_the_owner_if_the_settings_say_so(tmp_path: Path) -> None:
    script = """
        import sys
        from lbg_core.group import PublishedRecord
        from lbg_core.journal import JournalSettings, JournalWriter, WriteFailed
        writer = JournalWriter(sys.argv[1], "p", settings=JournalSettings(buffer_records=5, stops_when_full=True))
        try:
            for seq in range(200):
                writer.append(PublishedRecord("p", "k", 3, 1, seq, 1, 2, 0, "orders", 62))
        except WriteFailed as failure:
            print(failure)
    """
    assert "5 records are not in it" in _with_limit(script, tmp_path).stdout


def test_a_directory_that_cannot_be_used_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DirectoryUnusable, match="file/x"):
        JournalWriter(tmp_path / "file" / "x", "p")
    with pytest.raises(DirectoryUnusable, match="nowhere"):
        closed_files(tmp_path / "nowhere")


def test_a_line_that_is_no_record_is_named_by_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "p-20200101T000000000000Z-000001.jsonl"
    with JournalWriter(tmp_path, "p") as writer:
        writer.append(record(0))
    file.write_text(closed_files(tmp_path)[0].read_text() + "nonsense\n")
    with pytest.raises(UnreadableRecord, match=r"000001\.jsonl, line 2: .*JSON"):
        list(JournalReader(file))


@pytest.mark.parametrize("name", ["", ".hidden", "_hidden", "a/b", "a b", "x" * 200])
def test_a_writer_needs_a_name_that_readers_will_see(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a journal"):
        JournalWriter(tmp_path, name)


def test_a_rename_that_fails_is_reported(tmp_path: Path) -> None:
    told: list[str] = []
    writer = JournalWriter(tmp_path / "gone", "p", on_problem=told.append)
    writer.append(record(0))
    writer.flush()
    (tmp_path / "gone").rename(tmp_path / "elsewhere")
    writer.close()
    assert "cannot write the journal" in told[0]
    assert JournalWriter(tmp_path / "elsewhere", "p").recovered != []
    strict = JournalWriter(tmp_path / "strict", "p", settings=JournalSettings(stops_when_full=True))
    strict.append(record(0))
    strict.flush()
    (tmp_path / "strict").rename(tmp_path / "away")
    with pytest.raises(WriteFailed):
        strict.close()


def test_a_record_costs_little(tmp_path: Path) -> None:
    """A guard against a slip by a factor, not a benchmark: so many functions are called for each."""
    records = [record(seq) for seq in range(2_000)]
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    with JournalWriter(tmp_path, "p") as writer:
        sys.setprofile(count)
        try:
            for each in records:
                writer.append(each)
        finally:
            sys.setprofile(None)
    assert calls / len(records) < MOST_CALLS
