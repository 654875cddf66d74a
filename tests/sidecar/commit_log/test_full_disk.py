"""The commit log on a full disk: told once, nothing is claimed that was not processed, and no message is held up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testing.app.noting_process import NotingApp, exit_status, until_so
from testing.broker.embedded import EmbeddedBroker
from testing.broker.small_disk import on_small_disk, seen_by
from testing.sidecar.load import new_group, publish
from testing.sidecar.process import SidecarProcess
from testing.waiting import GUARD_S

COUNT = 300

FILLS_UP = """
import logging, sys
from contextlib import closing
from pathlib import Path
from lbg_core.group import SequenceSet
from lbg_sidecar.commit_log import CommitLog, CommitsError

logging.basicConfig(format="%(message)s", stream=sys.stdout, level=logging.INFO)
at = Path(sys.argv[1])
filler = at / "filler"

def fill():
    with filler.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass

fill()
try:
    CommitLog(at / "late")
except CommitsError as error:
    print(error)
filler.unlink()
log = CommitLog(at / "m.commits")
log.write("p", 0, SequenceSet([(0, 9)]))
fill()
for hash_ in range(1, 600):
    log.write("p", hash_, SequenceSet([(0, hash_)]))
filler.unlink()
log.write("q", 7, SequenceSet([(0, 7)]))
log.close()
with closing(CommitLog(at / "m.commits")) as again:
    found = {(publisher, hash_): runs for publisher, hash_, runs in again.streams()}
print(len(found), found["q", 7], all(runs == ((0, hash_),) for (name, hash_), runs in found.items() if name == "p"))
"""


@pytest.mark.process
def test_it_says_once_that_the_disk_is_full_forgets_the_oldest_and_grows_again_when_there_is_room(
    tmp_path: Path,
) -> None:
    command = [*on_small_disk(tmp_path, 600), sys.executable, "-c", FILLS_UP, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=GUARD_S)
    assert ended.returncode == 0, ended.stderr
    refused, told, again, found = ended.stdout.splitlines()
    assert refused.startswith(f"commit log {tmp_path}/late cannot be used: No space left on device")
    assert told.startswith(f"commit log {tmp_path}/m.commits cannot grow: No space left on device")
    assert again == f"commit log {tmp_path}/m.commits can grow again"
    assert found == "257 ((0, 7),) True"


async def test_a_sidecar_whose_commit_log_has_no_room_says_so_once_and_processes_everything(
    own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    await new_group(own_broker.url, "g")
    app, disk = NotingApp(tmp_path), tmp_path / "disk"
    disk.mkdir()
    told = {"LBG_NAME": "a", "LBG_COMMAND": app.command, "LBG_COMMITS": str(disk)}
    sidecar = SidecarProcess(own_broker.url, tmp_path, "g", under=on_small_disk(disk, 64), **told)
    await until_so(sidecar, sidecar.ready)
    assert [file.name for file in seen_by(sidecar.process.pid, disk).iterdir()] == ["g-a.commits"]
    await publish(own_broker.url, "g", COUNT)
    await until_so(sidecar, lambda: app.notes.ended() == set(range(COUNT)))
    sidecar.process.terminate()
    assert await exit_status(sidecar) == 0
    assert sidecar.text.count("cannot grow: No space left on device") == 1
    assert app.notes.repeated() == set()
    assert app.notes.inversions() == []
