"""Notes of a member's calls, read when its process has died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import lbg_sidecar.call_notes
from lbg_core.group.member_state import Suspected
from lbg_sidecar import Member, Message
from lbg_sidecar.call_notes import MAGIC, VERSION, CallNotes, FormerCalls, default_directory
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.suspects import Suspect
from testing.member.place import Place
from testing.waiting import GUARD_S

BROKERS = ["amqp://guest:secret@broker.example/"]


def opened(directory: Path, *, name: str = "m", owner: str = "m", slots: int = 4) -> CallNotes:
    return CallNotes(directory, "orders", BROKERS, name=name, owner=owner, slots=slots)


def call(seq: int, *, attempt: int = 1, publisher: str = "p", is_stamped: bool = True) -> InFlight:
    identity = (publisher, 3, seq) if is_stamped else None
    in_flight = InFlight(Attachment(0, 1), seq + 1, key="k", identity=identity)
    in_flight.calls = attempt
    return in_flight


def after_death(notes: CallNotes, directory: Path, *, owner: str = "m") -> FormerCalls:
    """Finds of the next process. The kernel closes the files of a process that dies."""
    notes.release()
    with closing(opened(directory, owner=owner)) as found:
        return found.former


def test_a_single_call_at_the_death_is_an_attempt_that_failed(tmp_path: Path) -> None:
    notes = opened(tmp_path)
    done, running = call(1), call(2, attempt=3)
    notes.write(done)
    notes.write(running)
    notes.clear(done)
    assert after_death(notes, tmp_path) == ((Suspected(("p", 3, 2), 3, 1, 0, "m"),), 0)


def test_notes_of_a_newer_version_are_left_as_they_are_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes = opened(tmp_path)
    notes.write(call(1))
    notes.release()
    (path,) = tmp_path.glob("*.calls")
    newer = MAGIC.replace(b"%d" % VERSION, b"%d" % (VERSION + 1))
    path.write_bytes(path.read_bytes().replace(MAGIC, newer))
    with closing(opened(tmp_path)) as found:
        assert found.former == ((), 0)
    assert path.read_bytes().startswith(newer)
    assert (
        f"call notes {path} are of version 2, and this member reads version 1: messages that end a process are not "
        "recognised by them, and the file is left as it is: upgrade this member"
    ) in caplog.text


def test_of_several_calls_at_the_death_none_is_an_attempt_and_all_are_suspects(tmp_path: Path) -> None:
    notes = opened(tmp_path)
    suspect = call(1, attempt=2)
    suspect.suspect = Suspect(Suspected(("p", 3, 1), 2, 5, 2, "other"), 0.0, 0.0)
    for one in (suspect, call(2), call(3, is_stamped=False), call(4, publisher="p" * 300)):
        notes.write(one)
    suspects, unknown = after_death(notes, tmp_path)
    assert set(suspects) == {Suspected(("p", 3, 1), 1, 5, 2, "m"), Suspected(("p", 3, 2), 0, 1, 0, "m")}
    assert unknown == 2


def test_an_aborted_call_that_cannot_be_stopped_does_not_share_the_blame_with_one_that_is_called_alone(
    tmp_path: Path,
) -> None:
    notes = opened(tmp_path)
    stuck, alone = call(1), call(2)
    notes.write(stuck)
    notes.clear_others(alone)
    notes.write(alone)
    assert after_death(notes, tmp_path) == ((Suspected(("p", 3, 2), 1, 1, 0, "m"),), 0)


def test_a_member_that_ends_in_order_leaves_nothing(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as notes:
        notes.write(call(1))
    assert list(tmp_path.iterdir()) == []


def test_notes_are_read_once_and_never_those_of_a_process_that_lives_or_of_another_member(
    tmp_path: Path,
) -> None:
    living, others = opened(tmp_path), opened(tmp_path, owner="other")
    living.write(call(1))
    others.write(call(2))
    assert after_death(others, tmp_path) == ((), 0)
    with closing(opened(tmp_path, owner="other")) as found:
        assert [one.identity[2] for one in found.former.suspects] == [2]
    with closing(opened(tmp_path, owner="other")) as found:
        assert found.former == ((), 0)
    living.close()


def test_members_with_a_made_up_name_take_each_others_notes(tmp_path: Path) -> None:
    notes = opened(tmp_path, name="host-17", owner="")
    notes.write(call(1))
    assert after_death(notes, tmp_path, owner="") == ((Suspected(("p", 3, 1), 1, 1, 0, "host-17"),), 0)


def test_a_death_of_a_process_with_several_members_is_no_attempt(tmp_path: Path) -> None:
    notes, beside = opened(tmp_path), opened(tmp_path, owner="beside")
    notes.write(call(1))
    beside.close()
    assert after_death(notes, tmp_path) == ((Suspected(("p", 3, 1), 0, 1, 0, "m"),), 0)


def test_notes_of_another_boot_count_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = opened(tmp_path)
    notes.write(call(1))
    monkeypatch.setattr(lbg_sidecar.call_notes, "boot_id", lambda: b"another")
    assert after_death(notes, tmp_path) == ((), 0)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_nobody_came_back_for_is_deleted_after_a_day_by_any_member(tmp_path: Path) -> None:
    living, dead, recent = (opened(tmp_path, owner=owner) for owner in ("living", "dead", "recent"))
    for notes in (dead, recent):
        notes.release()
    for notes in (living, dead):
        os.utime(notes.path, (1e9, 1e9))
    opened(tmp_path).close()
    assert set(tmp_path.iterdir()) == {living.path, recent.path}
    living.close()


def test_files_of_the_application_stay(tmp_path: Path) -> None:
    names = {"config.new", "phone.calls", "orders-0123456789ab.new"}
    for name in names:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1e9, 1e9))
    opened(tmp_path).close()
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_call_beyond_the_slots_is_not_noted(tmp_path: Path) -> None:
    notes = opened(tmp_path, slots=1)
    first, second, third = call(1), call(2), call(3)
    notes.write(first)
    notes.write(second)
    notes.clear(second)
    notes.clear(first)
    notes.write(third)
    assert [one.identity for one in after_death(notes, tmp_path).suspects] == [third.identity]


def test_the_directory_is_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    directory = default_directory()
    assert directory.stat().st_mode & 0o777 == 0o700
    opened(directory).close()
    directory.chmod(0o777)
    with pytest.raises(PermissionError, match="not this user's alone"):
        default_directory()
    directory.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    directory.symlink_to(elsewhere)
    with pytest.raises(PermissionError, match="not this user's alone"):
        default_directory()


FORKED = """
import os, sys, time
from pathlib import Path
from lbg_sidecar import Member, Message
from lbg_sidecar.call_notes import CallNotes
from lbg_sidecar.core.delivery import Attachment, InFlight

notes = CallNotes(Path(sys.argv[1]), "orders", ["amqp://broker.example/"], name="m", owner="m", slots=4)
in_flight = InFlight(Attachment(0, 1), 8, identity=("p", 3, 7))
in_flight.calls = 1
notes.write(in_flight)
if os.fork():
    sys.stdin.read()
else:
    print(os.getpid(), flush=True)
    time.sleep(3600)
"""


@pytest.mark.process
def test_a_child_that_outlives_the_process_does_not_hold_its_notes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait(GUARD_S)
        with closing(opened(tmp_path)) as found:
            assert found.former == ((Suspected(("p", 3, 7), 1, 1, 0, "m"),), 0)
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


async def handle(_message: Message) -> None:
    pass


async def test_members_that_leave_in_order_leave_neither_notes_nor_their_directory(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with Member(place.settings("m"), handle):
        async with Member(place.settings("n"), handle):
            assert len(list(default_directory().iterdir())) == 2
        assert len(list(default_directory().iterdir())) == 1
    assert os.listdir(tmp_path) == []


async def test_a_member_without_a_usable_directory_says_so_and_works(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    default_directory().chmod(0o777)
    async with Member(place.settings("m"), handle) as member:
        assert member.index == 0
    assert "a message that ends this process will not be recognised" in caplog.text
