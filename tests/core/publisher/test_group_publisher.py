from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import sys
import threading
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lbg_core.client import connect
from lbg_core.group import GroupSpec, Names
from lbg_core.journal import JournalReader, JournalWriter
from lbg_core.publisher import (
    BadRow,
    GroupPublisher,
    Identity,
    InputChanged,
    InputError,
    PublishingReport,
    PublishingSettings,
    RowOptions,
    open_source,
    publish_rows,
)
from testing.admin.group_on_broker import Drain, declare_group
from testing.broker.embedded import EmbeddedBroker, in_process
from testing.needs import repeated
from testing.waiting import GUARD_S

SPEC = GroupSpec("orders", "orders", hash_count=16, queue_count=4, queue_size_mb=100, client_username="guest")
OPTIONS = RowOptions(key_field="id", topic_field="topic")


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with in_process(tmp_path / "broker") as server:
        url = f"amqp://guest:guest@127.0.0.1:{server.port}/"
        await declare_group(url, SPEC)
        yield url


def rows_file(path: Path, count: int, *, first: int = 0) -> Path:
    lines = [f"k{number % 37 or ''},t{number % 2},{number}\n" for number in range(first, first + count)]
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        file.write("id,topic,number\n" + "".join(line.replace("k,", ",") for line in lines))
    return path


async def publish(url: str, path: Path, **options: object) -> PublishingReport:
    state = path.with_suffix(".state") if options.pop("stateful", False) else None
    publisher = GroupPublisher(url, group="orders", identity=Identity("p"), state=state)
    async with publisher:
        with open_source(str(path)) as source:
            bad_rows = await publish_rows(publisher, source, OPTIONS, **options)
        return publisher.report(bad_rows=bad_rows)


async def publish_all(publisher: GroupPublisher, path: Path) -> None:
    async with publisher:
        with open_source(str(path)) as source:
            await publish_rows(publisher, source, OPTIONS)


@pytest.mark.long
async def test_every_row_of_a_file_becomes_a_message(url: str, tmp_path: Path) -> None:
    report = await publish(url, rows_file(tmp_path / "x.csv.gz", 3000))
    assert (report.confirmed, report.without_key, report.bad_rows) == (3000, 82, 0)
    async with Drain(url, SPEC) as drain:
        await drain.until(lambda: len(drain.seen) == 3000)
    assert drain.inversions() == []
    assert {json.loads(each.body)["number"] for each in drain.seen} == {str(number) for number in range(3000)}


@pytest.mark.long
async def test_a_bad_row_stops_or_is_counted(url: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"id,topic,number\na,t,1\nb,t\nc,{'x' * 300},3\nd,t,4\n")
    with pytest.raises(BadRow, match=r"row 2 \(line 3\): 2 fields"):
        await publish(url, path)
    told: list[str] = []
    report = await publish(url, path, on_bad_row=lambda row: told.append(str(row)))
    assert (report.confirmed, report.bad_rows) == (2, 2)
    assert "row 3 (line 4): topic" in told[1]


@pytest.mark.long
async def test_the_rows_before_a_bad_one_are_confirmed_before_it_is_raised(url: str, tmp_path: Path) -> None:
    path = rows_file(tmp_path / "x.csv", 6000)
    with path.open("a") as file:
        file.write("no,row\n")
    publisher = GroupPublisher(url, group="orders", identity=Identity("p"))
    with pytest.raises(BadRow, match="row 6001"):
        await publish_all(publisher, path)
    report = publisher.report()
    connection = await connect(url)
    channel = await connection.open_channel()
    depths = [
        (await channel.queue_declare(Names("orders").queue(number), passive=True)).message_count
        for number in range(SPEC.queue_count)
    ]
    await connection.close()
    assert (report.published, report.confirmed, sum(depths)) == (6000, 6000, 6000)


@pytest.mark.long
@pytest.mark.parametrize("count", repeated([20_000, 60_000]))
async def test_the_rows_before_a_damaged_part_are_confirmed_before_it_is_raised(
    url: str, tmp_path: Path, count: int
) -> None:
    whole = rows_file(tmp_path / "x.csv.gz", count)
    whole.write_bytes(whole.read_bytes()[:-1000])
    publisher = GroupPublisher(url, group="orders", identity=Identity("p"))
    with pytest.raises(InputError, match="cut short"):
        await publish_all(publisher, whole)
    report = publisher.report()
    assert report.confirmed == report.published > count / 6


async def test_rows_of_a_pipe_are_published_as_they_come(url: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    all_came = threading.Event()

    def write() -> None:
        with pipe.open("wb", buffering=0) as file:
            file.write(b'{"id": "a", "topic": "t"}\n{"id": "b", "topic": "t"}\n')
            assert all_came.wait(GUARD_S)
            file.write(b'{"id": "c", "topic": "t"}')

    thread = threading.Thread(target=write)
    thread.start()
    async with Drain(url, SPEC) as drain:
        publishing = asyncio.create_task(publish(url, pipe))
        await drain.until(lambda: len(drain.seen) == 2)
        all_came.set()
        report = await publishing
    assert report.confirmed == 3
    thread.join()


async def test_an_unreadable_pipe_is_an_error_of_the_reader(url: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    thread = threading.Thread(target=lambda: pipe.write_bytes(b"id,topic\n1\n"))
    thread.start()
    with pytest.raises(BadRow):
        await publish(url, pipe)
    thread.join()


@pytest.mark.long
async def test_a_rate_holds_messages_back(url: str, tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await publish(url, rows_file(tmp_path / "x.csv", 300), rate_per_s=1000)
    assert loop.time() - began > 0.15


@pytest.mark.long
async def test_a_finished_state_publishes_nothing_again_and_goes_on_with_what_was_added(
    url: str, tmp_path: Path
) -> None:
    path = rows_file(tmp_path / "x.csv", 1000)
    first = await publish(url, path, stateful=True)
    again = await publish(url, path, stateful=True)
    assert (again.published, again.confirmed, again.published_in_this_run) == (1000, 1000, 0)
    assert (again.publisher, again.next_seq, again.runs) == (first.publisher, first.next_seq, 2)
    rows_file(path, 1200)
    more = await publish(url, path, stateful=True)
    assert (more.published, more.published_in_this_run, more.maybe_twice) == (1200, 200, 0)
    async with Drain(url, SPEC) as drain:
        await drain.until(lambda: len(drain.seen) == 1200)
        await asyncio.sleep(0.05)
    assert len(drain.seen) == len(drain.distinct()) == 1200


async def test_a_changed_input_is_refused_and_nothing_is_sent(url: str, tmp_path: Path) -> None:
    path = rows_file(tmp_path / "x.csv", 1000)
    await publish(url, path, stateful=True)
    rows_file(path, 1000, first=1)
    with pytest.raises(InputChanged, match="changed since it was published"):
        await publish(url, path, stateful=True)


async def test_bad_rows_that_were_skipped_stay_skipped_when_a_state_goes_on(url: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    lines = [f"a{number},{'x' * 300 if number % 5 == 0 else 't'},{number}" for number in range(50)]
    path.write_text("id,topic,number\n" + "\n".join(lines) + "\n")
    await publish(url, path, stateful=True, on_bad_row=lambda row: None)
    again = await publish(url, path, stateful=True, on_bad_row=lambda row: None)
    assert (again.published, again.published_in_this_run, again.bad_rows) == (40, 0, 10)


@pytest.mark.process
async def test_after_its_own_kill_9_a_publisher_goes_on_without_holes_or_other_bodies(tmp_path: Path) -> None:
    """The publisher is killed again and again, at random moments."""
    source = random.Random(20130201)
    count = 8_000
    path = rows_file(tmp_path / "x.csv.gz", count)
    journal, report_file = tmp_path / "journal", tmp_path / "report.json"
    kills = 0
    with EmbeddedBroker(tmp_path / "broker") as broker:
        await declare_group(broker.url, SPEC)
        files = ["--state", f"{path}.state", "--journal", str(journal), "--report", str(report_file)]
        fields = ["--key", "id", "--topic-field", "topic"]
        # Slower than any machine that runs this, so that it is alive when its moment comes.
        files += ["--rate", "4000"]
        command = ["publish", "--group", "orders", *fields, *files, "--broker", broker.url, str(path)]
        async with Drain(broker.url, SPEC) as drain:
            while True:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "lbgroup", *command, stdout=DEVNULL
                )
                ended = asyncio.create_task(process.wait())
                enough = len(drain.seen) + source.randrange(1, 2000)
                while not ended.done() and len(drain.seen) < enough:
                    await asyncio.wait({ended}, timeout=0.002)
                await asyncio.wait({ended}, timeout=source.random() * 0.02)
                if not ended.done():
                    process.kill()
                    kills += 1
                if await ended == 0:
                    break
            await drain.until(lambda: len(drain.distinct()) == count)
            await asyncio.sleep(0.05)
    report = json.loads(report_file.read_text())
    assert kills >= 4
    assert (report["published"], report["confirmed"]) == (count, count)
    assert report["runs"] <= kills + 1, "a run that was killed before it was connected left nothing"
    assert drain.inversions() == []
    assert not drain.bodies_differ()
    seqs: dict[tuple[str, int], set[int]] = {}
    for each in drain.seen:
        seqs.setdefault((each.publisher, each.hash), set()).add(each.seq)
    assert {stream: len(there) for stream, there in seqs.items()} == {
        (epoch["publisher"], int(hash_)): next_seq
        for epoch in report["epochs"]
        for hash_, next_seq in epoch["next_seq"].items()
    }
    assert all(there == set(range(len(there))) for there in seqs.values()), "a hole"
    window = PublishingSettings().window_messages * SPEC.queue_count
    repeated = len(drain.seen) - count
    assert repeated <= report["maybe_twice"] <= kills * 2 * window, "in flight, and since the last save"
    JournalWriter(journal, "recovering")
    journaled = {(record.publisher, record.hash_, record.seq) for record in JournalReader(journal)}
    assert journaled == {(*stream, seq) for stream, there in seqs.items() for seq in there}
    print(f"{kills} kills, {repeated} repeated of {report['maybe_twice']} that may be")
