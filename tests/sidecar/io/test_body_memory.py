"""The memory of message bodies: its limit, its files, and what it counts."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.client import Delivery
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.io.body_memory import (
    SEGMENT_BYTES,
    BodyMemory,
    body_limit_bytes,
    control_group_limit_bytes,
)

LIMIT = 10_000


def message(body: bytes, tag: int = 1) -> InFlight:
    delivery = Delivery.__new__(Delivery)
    delivery.channel, delivery.header, delivery.body = 1, b"\0\0", body
    delivery.consumer_tag, delivery.delivery_tag, delivery.redelivered = "tag", tag, False
    delivery.exchange, delivery.routing_key = "exchange", "prefix.1"
    in_flight = InFlight(Attachment(0, 0), tag, delivery=delivery)
    in_flight.size = len(body)
    return in_flight


def memory_at(path: Path, limit: int = LIMIT) -> BodyMemory:
    return BodyMemory(limit, lambda: str(path))


def test_a_body_beyond_the_limit_is_read_from_a_file(tmp_path: Path) -> None:
    memory = memory_at(tmp_path)
    first, second = message(b"a" * 8_000), message(b"b" * 4_000)
    memory.admit(first)
    memory.admit(second)
    assert (memory.use.memory_bytes, memory.use.file_bytes) == (8_000, 4_000)
    assert bytes(first.delivery.body) == b"a" * 8_000
    assert bytes(second.delivery.body) == b"b" * 4_000
    assert (second.delivery.routing_key, second.delivery.delivery_tag) == ("prefix.1", 1)


def test_a_file_has_no_name(tmp_path: Path) -> None:
    memory = memory_at(tmp_path)
    bodies = [message(b"x" * 9_000) for _ in range(3)]
    for one in bodies:
        memory.admit(one)
    assert memory.use.file_bytes == 18_000
    assert not list(tmp_path.iterdir())


def test_a_body_larger_than_the_limit_stays_in_memory_while_it_is_the_only_one(tmp_path: Path) -> None:
    memory = memory_at(tmp_path)
    large, another = message(b"a" * 50_000), message(b"b" * 50_000)
    memory.admit(large)
    memory.admit(another)
    assert (memory.use.memory_bytes, memory.use.file_bytes) == (50_000, 50_000)


def test_a_settled_message_makes_room(tmp_path: Path) -> None:
    memory = memory_at(tmp_path)
    first = message(b"a" * 8_000)
    memory.admit(first)
    del first
    second = message(b"b" * 8_000)
    memory.admit(second)
    assert (memory.use.memory_bytes, memory.use.file_bytes) == (8_000, 0)


def test_a_message_that_ends_in_another_thread_is_counted_once(tmp_path: Path) -> None:
    memory = memory_at(tmp_path, 1_000_000_000)
    messages = [message(b"x" * 2_000) for _ in range(400)]
    for one in messages:
        memory.admit(one)
    halves = [messages[:200], messages[200:]]
    del messages, one
    threads = [threading.Thread(target=half.clear) for half in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.use.memory_bytes == 0


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_file_is_closed_with_its_last_message(tmp_path: Path) -> None:
    memory = memory_at(tmp_path)
    before = open_files()
    messages = [message(b"x" * 9_000) for _ in range(4)]
    for one in messages:
        memory.admit(one)
    assert open_files() == before + 1
    del one, messages[1:3]
    assert open_files() == before + 1, "the last message is in it"
    messages.clear()
    assert open_files() == before


@pytest.mark.long
def test_files_are_of_bounded_size(tmp_path: Path) -> None:
    memory = memory_at(tmp_path, 1)
    before = open_files()
    body = bytes(SEGMENT_BYTES // 3)
    messages = [message(body) for _ in range(8)]
    for one in messages:
        memory.admit(one)
    assert open_files() == before + 3, "one body is in memory, three are in each file"
    assert all(bytes(one.delivery.body) == body for one in messages[1:])


def test_without_a_file_bodies_stay_in_memory_and_one_line_reports_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = memory_at(tmp_path / "missing")
    messages = [message(b"x" * 9_000) for _ in range(5)]
    with caplog.at_level(logging.WARNING):
        for one in messages:
            memory.admit(one)
    assert memory.use.memory_bytes == 45_000
    (line,) = caplog.messages
    assert "No such file" in line
    assert "TMPDIR" in line


def test_a_folder_that_is_nearly_full_gives_a_line_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    memory = BodyMemory(LIMIT, lambda: str(tmp_path), lambda: now)
    pwrite = os.pwrite

    def small_only(fd: int, data: bytes, offset: int) -> int:
        if len(data) > 5_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", small_only)
    messages = [message(b"x" * size) for size in (9_000, 9_000, 2_000) * 5]
    with caplog.at_level(logging.WARNING):
        for one in messages:
            memory.admit(one)
        assert len(caplog.messages) == 1
        now += 60.0
        memory.admit(message(b"x" * 9_000))
    assert len(caplog.messages) == 2


def test_a_full_disk_loses_no_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_at(tmp_path)
    pwrite, room = os.pwrite, [13_000]

    def limited(fd: int, data: bytes, offset: int) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = pwrite(fd, data[: room[0]], offset)
        room[0] -= written
        return written

    monkeypatch.setattr(os, "pwrite", limited)
    bodies = [bytes([number]) * 9_000 for number in range(5)]
    messages = [message(body) for body in bodies]
    for one in messages[:4]:
        memory.admit(one)
    room[0] = 100_000
    memory.admit(messages[4])
    assert [bytes(one.delivery.body) for one in messages] == bodies
    assert (memory.use.memory_bytes, memory.use.file_bytes) == (27_000, 18_000)


@given(st.lists(st.one_of(st.integers(1, 20_000), st.integers(-8, -1)), max_size=60))
def test_any_history_stays_within_the_limit_and_returns_each_body(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int]
) -> None:
    """A positive step admits a body of so many bytes, a negative one settles one of the messages."""
    memory = memory_at(tmp_path_factory.getbasetemp())
    messages: list[tuple[InFlight, bytes]] = []
    for number, step in enumerate(steps):
        if step > 0:
            body = bytes([number]) * step
            one = message(body)
            memory.admit(one)
            messages.append((one, body))
            del one
        elif messages:
            del messages[step % len(messages)]
        use = memory.use
        assert use.memory_bytes + use.file_bytes == sum(len(body) for _, body in messages)
        assert use.memory_bytes <= max(LIMIT, max((len(body) for _, body in messages), default=0))
    assert all(bytes(one.delivery.body) == body for one, body in messages)


def control_group(root: Path, groups: str, **limits: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for path, text in limits.items():
        file = root / "sys/fs/cgroup" / path.replace("__", "/").replace("_", ".", 1)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_the_least_limit_of_the_groups_above_counts(tmp_path: Path) -> None:
    root = control_group(
        tmp_path,
        "0::/pod/container\n",
        memory_max="max\n",
        pod__memory_max="268435456\n",
        pod__container__memory_max="536870912\n",
    )
    assert control_group_limit_bytes(root) == 268_435_456


def test_a_limit_of_version_1_counts(tmp_path: Path) -> None:
    root = control_group(tmp_path, "4:cpu,cpuacct:/x\n3:memory:/x\n0::/\n")
    folder = root / "sys/fs/cgroup/memory/x"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("104857600\n")
    (folder.parent / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert control_group_limit_bytes(root) == 104_857_600


@pytest.mark.parametrize("text", ["max\n", "9223372036854771712\n"])
def test_an_unlimited_group_has_no_limit(tmp_path: Path, text: str) -> None:
    assert control_group_limit_bytes(control_group(tmp_path, "0::/\n", memory_max=text)) is None


def test_a_system_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert control_group_limit_bytes(tmp_path) is None


@pytest.mark.parametrize(
    ("limit_mb", "group_bytes", "bytes_"),
    [(None, None, 64_000_000), (None, 256 * 2**20, 64 * 2**20), (10, 256 * 2**20, 10_000_000)],
)
def test_bodies_get_a_quarter_of_the_group_unless_a_limit_is_set(
    limit_mb: int | None, group_bytes: int | None, bytes_: int
) -> None:
    assert body_limit_bytes(limit_mb, group_bytes) == bytes_
