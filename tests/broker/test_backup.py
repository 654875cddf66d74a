"""Copies of the store: made while the broker writes, refused when they are not whole."""

from __future__ import annotations

import fcntl
import io
import shutil
import sqlite3
import stat
import threading
import time
from collections import namedtuple
from contextlib import suppress
from pathlib import Path

import pytest

from lbg_broker.store import DirectoryLockedError, DiskFullError, NewerStoreError, Store, StoreError
from lbg_broker.store.backup import StoreCopy, back_up, copied_out, restore
from lbg_broker.store.errors import DamagedStoreError
from lbg_core.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicQos,
    BasicQosOk,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueDeclare,
    QueueDeclareOk,
)
from testing.amqp.plain_client import PlainClient
from testing.broker.embedded import EmbeddedBroker

BODY = b"x" * 2000


class Publishing(threading.Thread):
    """Publishes numbered messages until it is told to stop; `confirmed` of them are on disk."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.confirmed = 0
        self._client = PlainClient(port)
        self._client.ask(QueueDeclare("q", durable=True), QueueDeclareOk)
        self._client.ask(ConfirmSelect(), ConfirmSelectOk)
        self._over = threading.Event()

    def run(self) -> None:
        with suppress(ConnectionError):  # a broker that is killed
            self._publish()

    def _publish(self) -> None:
        published = 0
        while not self._over.is_set():
            for _ in range(20):
                published += 1
                self._client.publish(b"%d " % published + BODY, "q")
            self._client.flush()
            while self.confirmed < published:
                self.confirmed = self._client.wait(BasicAck).delivery_tag

    def reach(self, count: int) -> None:
        while self.confirmed < count:
            time.sleep(0.005)

    def stop(self) -> None:
        self._over.set()
        self.join(20)
        self._client.close()


def numbers_in(port: int, count: int) -> list[int]:
    with PlainClient(port) as client:
        client.send(BasicConsume("q", "c"))
        return [int(delivery.body.split()[0]) for delivery in client.deliveries(count)]


@pytest.fixture(scope="module")
def filled_once(process: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("filled") / "data"
    with EmbeddedBroker(data_dir) as broker:
        with PlainClient(broker.port) as client:
            client.ask(QueueDeclare("q", durable=True), QueueDeclareOk)
            client.ask(ConfirmSelect(), ConfirmSelectOk)
            for number in range(10):
                client.publish(b"%d " % number + BODY, "q")
            while client.wait(BasicAck).delivery_tag < 10:
                pass
        broker.stop()
    return data_dir


@pytest.fixture
def filled(filled_once: Path, tmp_path: Path) -> Path:
    """A data directory with ten messages in it, in which nobody runs."""
    return shutil.copytree(filled_once, tmp_path / "data")


def copy_of(data_dir: Path) -> bytes:
    with copied_out(data_dir) as (copy, _):
        return copy.read()


@pytest.mark.process
def test_a_copy_has_streams_with_their_offsets(tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite3"
    arguments = {"x-queue-type": "stream"}
    with EmbeddedBroker(tmp_path / "data") as broker:
        with PlainClient(broker.port) as client:
            client.ask(QueueDeclare("q", durable=True, arguments=arguments), QueueDeclareOk)
            client.ask(ConfirmSelect(), ConfirmSelectOk)
            for number in range(5):
                client.publish(b"%d" % number, "q")
            client.flush()
            while client.wait(BasicAck).delivery_tag < 5:
                pass
        assert back_up(tmp_path / "data", copy).messages == 5
    with copy.open("rb") as source:
        restore(source, tmp_path / "other")
    with EmbeddedBroker(tmp_path / "other") as broker, PlainClient(broker.port) as client:
        client.ask(BasicQos(0, 10, False), BasicQosOk)
        client.send(BasicConsume("q", "c", arguments={"x-stream-offset": 2}))
        found = [(event.headers["x-stream-offset"], event.body) for event in client.deliveries(3)]
        assert found == [(2, b"2"), (3, b"3"), (4, b"4")]


@pytest.mark.process
def test_a_copy_made_while_the_broker_writes_holds_all_that_was_confirmed_before(tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite3"
    with EmbeddedBroker(tmp_path / "data") as broker:
        publishing = Publishing(broker.port)
        publishing.start()
        publishing.reach(300)
        before = publishing.confirmed
        found = back_up(tmp_path / "data", copy)
        publishing.stop()
        assert publishing.confirmed > before, "it went on meanwhile"
        assert found.messages >= before
        assert found.queues == 1
    with copy.open("rb") as source:
        assert restore(source, tmp_path / "other") == found
    with EmbeddedBroker(tmp_path / "other") as broker:
        assert numbers_in(broker.port, found.messages) == list(range(1, found.messages + 1))


def test_a_copy_has_its_name_when_it_is_whole_and_nobody_else_reads_it(filled: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite3"
    (tmp_path / "copy.sqlite3.part").write_bytes(b"what a killed backup left" * 1000)
    back_up(filled, copy)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.glob("copy*")) == ["copy.sqlite3"]
    back_up(filled, copy)


def test_a_stream_leaves_nothing_in_the_data_directory(filled: Path) -> None:
    before = {path.name for path in filled.iterdir()}
    with copied_out(filled) as (copy, found):
        assert len(copy.read()) == found.size_bytes
    assert {path.name for path in filled.iterdir()} <= before


def test_a_second_backup_to_the_same_file_is_refused(filled: Path, tmp_path: Path) -> None:
    with (tmp_path / "copy.part").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="another backup is writing"):
            back_up(filled, tmp_path / "copy")


def test_a_copy_that_would_fill_the_disk_is_not_begun(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 10, 60 << 20))
    with pytest.raises(DiskFullError, match="60 MiB free and the copy needs 64: copy to another file system"):
        back_up(filled, tmp_path / "copy")
    assert not list(tmp_path.glob("copy*"))


def test_a_directory_without_a_store_or_without_room_for_a_file_is_told(filled: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"broker.sqlite3 is not there"):
        back_up(tmp_path, tmp_path / "copy")
    with pytest.raises(StoreError, match=r"cannot write .*: No such file or directory"):
        back_up(filled, tmp_path / "none" / "copy")


# Restoring


def test_a_store_that_is_there_is_given_up_only_when_told_and_its_log_goes_with_it(
    filled: Path, tmp_path: Path
) -> None:
    copy = copy_of(filled)
    with EmbeddedBroker(filled) as broker:
        publishing = Publishing(broker.port)
        publishing.start()
        publishing.reach(100)
        broker.kill()
        publishing.stop()
    assert (filled / "broker.sqlite3-wal").stat().st_size > 0
    with pytest.raises(StoreError, match="use --replace to overwrite it"):
        restore(io.BytesIO(copy), filled)
    found = restore(io.BytesIO(copy), filled, replace=True)
    assert (found.queues, found.messages) == (1, 10)
    with EmbeddedBroker(filled) as broker:
        assert numbers_in(broker.port, 10) == list(range(10))


def test_a_directory_in_use_is_not_touched(filled: Path, tmp_path: Path) -> None:
    copy = copy_of(filled)
    with EmbeddedBroker(filled) as broker:
        with pytest.raises(DirectoryLockedError, match="in use by another broker"):
            restore(io.BytesIO(copy), filled, replace=True)
        assert numbers_in(broker.port, 10) == list(range(10))


def broken(copy: bytes, how: str, tmp_path: Path) -> bytes:
    if how == "cut off":
        return copy[:-4096]
    if how == "cut in a page":
        return copy[:5000]
    if how == "empty":
        return b""
    if how == "something else":
        return b"name,value\n" * 1000
    if how == "scribbled on":
        return copy[:4096] + b"\xff" * 4096 + copy[8192:]
    file = tmp_path / "broken.sqlite3"
    file.write_bytes(copy)
    database = sqlite3.connect(file)
    database.execute("PRAGMA journal_mode=DELETE")
    database.execute("PRAGMA user_version=99" if how == "newer" else "PRAGMA application_id=7")
    database.close()
    return file.read_bytes()


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("cut off", DamagedStoreError, "is truncated|is damaged"),
        ("cut in a page", DamagedStoreError, "is truncated|is damaged"),
        ("empty", StoreError, "is not a store of a broker"),
        ("something else", DamagedStoreError, "is damaged or no broker's store"),
        ("scribbled on", DamagedStoreError, "is damaged"),
        ("newer", NewerStoreError, "is of version 99, and this broker reads version 1; it is left as it is"),
        ("another application's", StoreError, "is not a store of a broker"),
    ],
)
def test_what_is_no_whole_copy_is_refused_and_changes_nothing(
    filled: Path, tmp_path: Path, how: str, error: type[StoreError], words: str
) -> None:
    before = (filled / "broker.sqlite3").read_bytes()
    bad = broken(copy_of(filled), how, tmp_path)
    with pytest.raises(error, match=words):
        restore(io.BytesIO(bad), filled, replace=True)
    assert (filled / "broker.sqlite3").read_bytes() == before
    assert not list(filled.glob("*.part"))
    store = Store(filled / "broker.sqlite3")
    assert store.load().spools[0].messages == 10
    store.close()


def test_an_empty_brokers_copy_is_a_store_too(tmp_path: Path) -> None:
    Store(tmp_path / "broker.sqlite3").close()
    with copied_out(tmp_path) as (copy, found):
        assert restore(copy, tmp_path / "other") == found
    assert found == StoreCopy(0, 0, found.size_bytes)
