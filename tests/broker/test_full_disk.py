"""The broker on a disk without a free byte, judged by pika: consumers drain it, it starts, and it ends."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
import trustme

from lbg_broker.store import DiskFullError
from lbg_broker.store.reserve import Reserve, Size
from testing import ROOT
from testing.amqp.open_pika import OpenConnection
from testing.broker.embedded import EmbeddedBroker
from testing.broker.small_disk import SmallDisk
from testing.command_line import clean_environment
from testing.full_disk import connect, play, release
from testing.kubernetes.mounted import MountedSecret
from testing.needs import repeated
from testing.waiting import GUARD_S

SETTINGS = {"disk_retry_s": 0.05, "close_timeout_s": 1.0}
LARGE = 30_000

FORGET_RESERVE = """
import sqlite3
store = sqlite3.connect("broker.sqlite3", isolation_level=None)
store.execute("DELETE FROM reserve")
store.execute("PRAGMA incremental_vacuum").fetchall()
store.close()
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", 10_000) as disk:
        yield disk


@pytest.fixture
def broker(disk: SmallDisk, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    data_dir = disk.folder / "data"
    with EmbeddedBroker(
        data_dir, settings=SETTINGS, under=disk.under, log_file=tmp_path / "broker.log"
    ) as broker:
        yield broker
        assert "Traceback" not in broker.log_file.read_text()


class Filling:
    """A pika publisher in a thread of its own, which fills the disk and is blocked."""

    def __init__(self, broker: EmbeddedBroker, *, size: int, limit: int | None = None) -> None:
        self.confirmed: list[int] = []
        self.blocked = threading.Event()
        login = pika.PlainCredentials("guest", "guest")
        self._connection = OpenConnection(
            pika.ConnectionParameters("127.0.0.1", broker.port, heartbeat=0, credentials=login)
        )
        self._connection.raw.add_on_connection_blocked_callback(lambda *_: self.blocked.set())
        self._connection.raw.add_on_connection_unblocked_callback(lambda *_: self.blocked.clear())
        self._size = size
        self._limit = limit
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        channel = self._connection.channel()
        channel.confirm_delivery()
        number = 0
        try:
            while self._limit is None or number < self._limit:
                body = b"%d." % number + b"." * self._size
                channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
                self.confirmed.append(number)
                number += 1
        except (pika.exceptions.AMQPError, OSError):
            return  # the broker has gone
        finally:
            release(self._connection)

    def has_ended(self) -> bool:
        self._thread.join(GUARD_S)
        return not self._thread.is_alive()


@pytest.fixture
def fill(broker: EmbeddedBroker) -> Iterator[Callable[..., Filling]]:
    """Begins a `Filling`, which ends with the test."""
    begun: list[Filling] = []

    def begin(**settings: int) -> Filling:
        begun.append(Filling(broker, **settings))
        return begun[-1]

    yield begin
    broker.kill()
    assert all(one.has_ended() for one in begun)


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GUARD_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def declare(broker: EmbeddedBroker, queue: str = "q", **settings: Any) -> None:
    connection = connect(broker.port)
    connection.channel().queue_declare(queue, durable=True, **settings)
    connection.close()


def log_in(broker: EmbeddedBroker, user: str, password: str) -> None:
    credentials = pika.PlainCredentials(user, password)
    pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, credentials=credentials))


def drained(broker: EmbeddedBroker, expected: set[int]) -> set[int]:
    """Acknowledge message after message until all that are expected were delivered."""
    return acknowledged(connect(broker.port), expected)


def acknowledged(connection: Any, expected: set[int]) -> set[int]:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=50)
    got: set[int] = set()
    for method, _, body in channel.consume("q", inactivity_timeout=GUARD_S):
        if method is None:
            break
        got.add(int(body.split(b".", 1)[0]))
        channel.basic_ack(method.delivery_tag)
        if expected <= got:
            break
    connection.close()
    return got


@pytest.mark.slow
@pytest.mark.process
def test_cycles_of_fill_kill_start_and_drain_lose_nothing_that_was_confirmed(
    disk: SmallDisk, tmp_path: Path
) -> None:
    outcome = play(disk, tmp_path, cycles=4, seed=3)
    assert not outcome.problems, (tmp_path / "broker.log").read_text()
    assert (outcome.cycles, outcome.stops) == (4, 1)
    assert outcome.lost == set()


@pytest.mark.process
def test_members_join_a_full_disk_drain_it_through_a_kill_of_the_broker_and_leave_on_it(
    disk: SmallDisk, tmp_path: Path
) -> None:
    outcome = play(disk, tmp_path, cycles=1, seed=3, members=True)
    assert not outcome.problems, [log.read_text() for log in tmp_path.glob("*.log")]
    assert (outcome.cycles, outcome.kills) == (1, 2)
    assert outcome.stops == 4, "two members after the cycle, and two after the last drain"
    assert outcome.lost == set()


@pytest.mark.process
def test_consumers_drain_a_full_disk_and_publishers_go_on_in_what_they_free(
    disk: SmallDisk, broker: EmbeddedBroker, fill: Callable[..., Filling]
) -> None:
    declare(broker)
    filling = fill(size=LARGE)
    until(filling.blocked.is_set)
    with disk.filled():
        before = list(filling.confirmed)
        assert set(before) <= drained(broker, set(before))
        until(lambda: len(filling.confirmed) > len(before))


@pytest.mark.process
@pytest.mark.parametrize("number", repeated([signal.SIGKILL, signal.SIGTERM]))
def test_it_ends_and_starts_on_a_full_disk_which_can_be_looked_at(
    number: signal.Signals, disk: SmallDisk, broker: EmbeddedBroker, fill: Callable[..., Filling]
) -> None:
    lbg = [sys.executable, "-m", "lbgroup"]
    target = ["--broker", broker.url, "--management", broker.management_url]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*lbg, *arguments],
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=GUARD_S,
        )

    created = run("group", "create", "g", *target)
    assert created.returncode == 0, created.stderr
    declare(broker)
    filling = fill(size=LARGE)
    until(filling.blocked.is_set)
    with disk.filled():
        if number == signal.SIGTERM:
            assert broker.stop() == 0
        else:
            broker.kill()
        broker.start()
        shown = run("group", "show", "g", *target)
        assert shown.returncode == 0, shown.stderr
        assert set(filling.confirmed) <= drained(broker, set(filling.confirmed))


@pytest.mark.process
@pytest.mark.slow
def test_a_backup_beside_a_full_disk_leaves_the_reserve_where_it_is(
    disk: SmallDisk, broker: EmbeddedBroker, tmp_path: Path, fill: Callable[..., Filling]
) -> None:
    declare(broker)
    filling = fill(size=LARGE)
    until(filling.blocked.is_set)
    backup = [sys.executable, "-m", "lbgroup", "broker", "backup", "--data-dir", str(broker.data_dir)]

    def copy_to(target: Path) -> subprocess.CompletedProcess[str]:
        command = [*disk.under, str(tmp_path), *backup, str(target)]
        return subprocess.run(
            command, env=clean_environment(), capture_output=True, text=True, check=False, timeout=GUARD_S
        )

    with disk.filled():
        refused = copy_to(disk.folder / "copy")
        assert refused.returncode != 0
        assert "copy to another file system" in refused.stderr
        assert copy_to(tmp_path / "while-it-runs").returncode == 0
        assert broker.stop() == 0
        copied = copy_to(tmp_path / "while-it-is-stopped")
        assert copied.returncode == 0, copied.stderr
        broker.start()
        assert set(filling.confirmed) <= drained(broker, set(filling.confirmed))


@pytest.mark.process
def test_dead_letters_are_written_on_a_full_disk(
    disk: SmallDisk, broker: EmbeddedBroker, fill: Callable[..., Filling]
) -> None:
    declare(broker, "dead")
    declare(broker, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    filling = fill(size=LARGE)
    until(filling.blocked.is_set)
    with disk.filled():
        connection = connect(broker.port)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20)
        for refused, (method, _, _) in enumerate(channel.consume("q", inactivity_timeout=GUARD_S), start=1):
            assert method is not None
            if refused % 20 == 0:
                channel.basic_nack(method.delivery_tag, multiple=True, requeue=False)
            if refused == 60:
                break
        channel.cancel()
        until(lambda: channel.queue_declare("dead", passive=True).method.message_count == 60)
        broker.kill()
        release(connection)
        broker.start()
        # The last ones may not have been on disk: they are in their queue again.
        dead, left = (int(broker.queue(name)["messages"]) for name in ("dead", "q"))
        assert 0 < dead <= 60
        assert dead + left >= len(filling.confirmed)


@pytest.mark.process
@pytest.mark.slow
def test_a_store_without_its_reserve_starts_on_a_full_disk_and_says_what_to_do(
    disk: SmallDisk, broker: EmbeddedBroker, fill: Callable[..., Filling]
) -> None:
    declare(broker)
    filling = fill(size=LARGE, limit=100)
    until(lambda: len(filling.confirmed) == 100)
    assert broker.stop() == 0
    folder = disk.seen(broker.data_dir)
    # The log and its index are deleted by who closes the store last.
    subprocess.run(
        [*disk.under, str(broker.data_dir), sys.executable, "-c", FORGET_RESERVE], check=True, timeout=GUARD_S
    )
    assert not (folder / "broker.sqlite3-wal").exists()
    with disk.filled():
        broker.start()
        said = broker.log_file.read_text().splitlines()
        (line,) = [line for line in said if "no room for the reserve" in line]
        assert "let the volume grow" in line
        assert broker.queue("q")["messages"] == 100
    assert drained(broker, set(range(100))) == set(range(100))


@pytest.mark.process
def test_the_reserve_has_its_blocks_and_keeps_them_when_the_broker_stops(
    disk: SmallDisk, broker: EmbeddedBroker, tmp_path: Path, fill: Callable[..., Filling]
) -> None:
    declare(broker)
    filling = fill(size=LARGE, limit=60)
    until(lambda: len(filling.confirmed) == 60)
    assert broker.stop() == 0
    folder = disk.seen(broker.data_dir)
    database, log = folder / "broker.sqlite3", folder / "broker.sqlite3-wal"
    pages = database.stat().st_size // 4096
    for file in (database, log, folder / "broker.sqlite3-shm"):
        assert file.stat().st_blocks * 512 >= file.stat().st_size
    assert log.stat().st_size >= Size(pages, LARGE).log_bytes
    assert log.read_bytes()[:32] == bytes(32)
    copy = tmp_path / "copy.sqlite3"
    copy.write_bytes(database.read_bytes())
    with sqlite3.connect(f"file:{copy}?mode=ro&immutable=1", uri=True) as store:
        (reserved,) = store.execute("SELECT sum(length(room)) FROM reserve WHERE id > 0").fetchone()
    assert reserved >= Size(pages).pages * 4096 * 0.9


@pytest.mark.process
@pytest.mark.slow
def test_users_are_made_and_changed_on_a_full_disk_and_it_knows_them_at_the_next_start(
    disk: SmallDisk, broker: EmbeddedBroker, fill: Callable[..., Filling]
) -> None:
    """Changed files of the administrator have the same effect."""
    declare(broker)
    filling = fill(size=LARGE)
    until(filling.blocked.is_set)
    with disk.filled():
        broker.put("users/late", password="first", tags="administrator")
        broker.put("users/late", password="second", tags="administrator")
        broker.kill()
        broker.start()
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
            log_in(broker, "late", "second")
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            log_in(broker, "late", "first")


@pytest.mark.process
@pytest.mark.slow
def test_a_renewed_certificate_and_a_changed_login_are_taken_up_while_the_disk_is_full(
    disk: SmallDisk, broker: EmbeddedBroker, tmp_path: Path, fill: Callable[..., Filling]
) -> None:
    authority = trustme.CA()
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    def issued() -> dict[str, bytes]:
        made = authority.issue_cert("127.0.0.1")
        return {"tls_crt": made.cert_chain_pems[0].bytes(), "tls_key": made.private_key_pem.bytes()}

    def shows(files: dict[str, bytes]) -> bool:
        address = ("127.0.0.1", renewing.port)
        with (
            socket.create_connection(address, GUARD_S) as plain,
            trusting.wrap_socket(plain, server_hostname="127.0.0.1") as client,
        ):
            return client.getpeercert(binary_form=True) == ssl.PEM_cert_to_DER_cert(files["tls_crt"].decode())

    def lets_in(password: str) -> bool:
        try:
            connect(renewing.port, "ops", password, trusting).close()
        except pika.exceptions.ProbableAuthenticationError:
            return False
        return True

    first, second = issued(), issued()
    certificate = MountedSecret(tmp_path / "tls", **first)
    login = MountedSecret(tmp_path / "login", username="ops", password="first")
    renewing = EmbeddedBroker(
        broker.data_dir,
        settings={
            **SETTINGS,
            "files_check_s": 0.05,
            "tls": [str(certificate / "tls.crt"), str(certificate / "tls.key")],
            "administrator": [str(login / "username"), str(login / "password")],
        },
        under=disk.under,
        log_file=broker.log_file,
    )
    declare(broker)
    filling = fill(size=LARGE)
    until(filling.blocked.is_set)
    with disk.filled():
        broker.kill()
        assert filling.has_ended()
        with renewing:
            assert shows(first)
            assert lets_in("first")
            certificate.put(**second)
            login.put(username="ops", password="second")
            until(lambda: shows(second) and lets_in("second"))
            assert not lets_in("first")
        login.put(username="ops", password="third")
        with renewing:
            assert shows(second)
            assert lets_in("third")
            wanted = set(filling.confirmed)
            assert wanted <= acknowledged(connect(renewing.port, "ops", "third", trusting), wanted)


@pytest.mark.process
def test_rejects_alone_drain_a_full_disk_while_somebody_consumes_the_dead_letters(
    disk: SmallDisk, broker: EmbeddedBroker, fill: Callable[..., Filling]
) -> None:
    """Each letter is longer than what it replaces: without that consumer they wait for the reserve in the end."""
    declare(broker, "dead")
    declare(broker, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    filling = fill(size=LARGE)
    until(filling.blocked.is_set)
    with disk.filled():
        wanted = set(filling.confirmed)
        refusing, burying = connect(broker.port), connect(broker.port)
        channel, graves = refusing.channel(), burying.channel()
        buried: set[int] = set()

        def bury(_: object, method: Any, __: object, body: bytes) -> None:
            buried.add(int(body.split(b".", 1)[0]))
            graves.basic_ack(method.delivery_tag)

        channel.basic_qos(prefetch_count=50)
        channel.basic_consume(
            "q", lambda _, method, __, ___: channel.basic_reject(method.delivery_tag, requeue=False)
        )
        graves.basic_consume("dead", bury)
        deadline = time.monotonic() + GUARD_S
        while not wanted <= buried and time.monotonic() < deadline:
            refusing.process_data_events(0.01)
            burying.process_data_events(0.01)
        assert wanted <= buried
        refusing.close()
        burying.close()


WRITE_ALONE = """
import sqlite3, sys
from pathlib import Path
from lbg_broker.store import DiskFullError, Store
from tests.broker.test_store import batch, change, positions_in

store = Store(Path(sys.argv[1]))
store.carry_out(batch(change([1])))
try:
    # A transaction that is longer than the cache: SQLite writes to the log before the reserve is asked for room.
    store.carry_out(batch(change(range(2, 2_000), size=30_000)))
except DiskFullError as error:
    print(error)
store.carry_out(batch(change(deletes=[(1, 1)]), on_reserve=True))
print(positions_in(store))
store.close()
"""


@pytest.mark.process
def test_a_write_of_sqlites_own_that_finds_no_room_is_a_full_disk_whatever_the_kernel_calls_it(
    tmp_path: Path,
) -> None:
    """SQLite knows ENOSPC only. EFBIG stands for all others: EDQUOT takes a disk with quotas."""
    limited = ["prlimit", f"--fsize={6 << 20}", sys.executable, "-c", WRITE_ALONE]
    told = subprocess.run(
        [*limited, str(tmp_path / "broker.sqlite3"), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
        timeout=GUARD_S,
    )
    assert told.returncode == 0, told.stderr
    why, left = told.stdout.splitlines()
    assert "file has reached its size limit" in why
    assert left == "[]"


ROOM_COMES = """
import sys
from pathlib import Path
from lbg_broker.store import DiskFullError, Store, StoreError
from lbg_broker.store.reserve import Reserve
from tests.broker.test_store import batch, change

Reserve.require_room = lambda reserve: None   # there is room whenever it is asked for
store = Store(Path(sys.argv[1]))
store.carry_out(batch(change([1])))
for _ in range(4):
    try:
        store.carry_out(batch(change(range(2, 2_000), size=30_000)))
    except StoreError as error:
        print(type(error).__name__)
    if len(sys.argv) > 3:
        store.carry_out(batch(change(deletes=[(1, 1)])))
"""


def without_room_for_sqlite(tmp_path: Path, *arguments: str) -> list[str]:
    told = subprocess.run(
        [
            *("prlimit", f"--fsize={6 << 20}", sys.executable, "-c", ROOM_COMES),
            *(str(tmp_path / "broker.sqlite3"), str(ROOT), *arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=GUARD_S,
    )
    assert told.returncode == 0, told.stderr
    return told.stdout.splitlines()


@pytest.mark.process
def test_a_write_that_failed_while_there_is_room_again_is_tried_again(tmp_path: Path) -> None:
    """Between the write that failed and the look at the disk somebody else may have freed something."""
    assert without_room_for_sqlite(tmp_path, "and others go well") == ["DiskFullError"] * 4


@pytest.mark.process
def test_writes_that_fail_again_and_again_while_there_is_room_are_an_error_of_the_disk(
    tmp_path: Path,
) -> None:
    assert without_room_for_sqlite(tmp_path) == ["DiskFullError", "StoreError", "StoreError", "StoreError"]


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EDQUOT, "the disk quota is exhausted"), (errno.ENOSPC, "no space left on the device")],
)
def test_the_reserve_takes_a_used_up_quota_for_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    reserve = Reserve(tmp_path / "broker.sqlite3")

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refused)
    for room in (
        lambda: reserve.allocate(10, have=0),
        lambda: reserve.allocate_log(Size(10)),
        reserve.require_room,
    ):
        with pytest.raises(DiskFullError, match=words):
            room()
    monkeypatch.undo()
    reserve.allocate(10, have=0)
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(DiskFullError, match=os.strerror(number)):
        reserve.allocate_log(Size(10))
    monkeypatch.undo()
    reserve.close(is_empty=False)


@pytest.mark.process
@pytest.mark.slow
def test_a_broker_whose_files_may_not_grow_goes_on_as_on_a_full_disk(tmp_path: Path) -> None:
    under = ("prlimit", f"--fsize={6 << 20}", "sh", "-c", 'cd "$0" && exec "$@"')
    with EmbeddedBroker(
        tmp_path / "data", settings=SETTINGS, under=under, log_file=tmp_path / "broker.log"
    ) as broker:
        declare(broker)
        filling = Filling(broker, size=LARGE)
        until(filling.blocked.is_set)
        before = list(filling.confirmed)
        assert set(before) <= drained(broker, set(before))
        until(lambda: len(filling.confirmed) > len(before))
        broker.kill()
        assert filling.has_ended()
        broker.start()
        assert set(filling.confirmed) - set(before) <= drained(broker, set(filling.confirmed) - set(before))
        assert "Traceback" not in broker.log_file.read_text()
