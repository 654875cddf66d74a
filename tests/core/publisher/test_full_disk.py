"""`lbg publish --state` on a full disk: one line before anything is published, or no difference at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from lbg_core.client import connect
from lbg_core.group import Names
from testing.broker.embedded import EmbeddedBroker
from testing.broker.small_disk import on_small_disk
from testing.command_line import clean_environment
from testing.sidecar.load import new_group
from testing.waiting import GUARD_S

COUNT = 500
FILL = 'head -c "$0" /dev/zero > "$1/filler"; shift; exec "$@"'


def published(
    own_broker: EmbeddedBroker, directory: Path, *, free_kb: int
) -> subprocess.CompletedProcess[str]:
    """With a state file on a disk that has so much room."""
    disk, rows = directory / "disk", directory / "rows.jsonl"
    disk.mkdir()
    rows.write_text("".join(json.dumps({"k": str(n % 7), "n": n}) + "\n" for n in range(COUNT)))
    fill = ("sh", "-c", FILL, str((200 - free_kb) * 1024), str(disk))
    command = ("-m", "lbgroup", "publish", "--broker", own_broker.url, "--group", "g", "--key", "k")
    state = ("--state", str(disk / "state"), str(rows))
    return subprocess.run(
        [*on_small_disk(disk, 200), *fill, sys.executable, *command, *state],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=GUARD_S,
    )


async def waiting(own_broker: EmbeddedBroker) -> int:
    connection = await connect(own_broker.url)
    channel = await connection.open_channel()
    queues = [Names("g").queue(number) for number in range(4)]
    count = sum([(await channel.queue_declare(each, passive=True)).message_count for each in queues])
    await connection.close()
    return count


async def test_a_state_file_that_has_no_room_ends_it_in_one_line_before_anything_is_published(
    own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    await new_group(own_broker.url, "g")
    ended = published(own_broker, tmp_path, free_kb=4)
    assert ended.returncode != 0
    (line,) = [line for line in ended.stderr.splitlines() if "error" in line]
    assert "state" in line
    assert "No space left on device" in line
    assert await waiting(own_broker) == 0


async def test_a_state_file_has_all_its_space_from_the_start(
    own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    await new_group(own_broker.url, "g")
    ended = published(own_broker, tmp_path, free_kb=24)
    assert ended.returncode == 0, ended.stderr
    assert await waiting(own_broker) == COUNT
