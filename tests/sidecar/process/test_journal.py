"""The sidecar's journal of both its sides: what an application published through it, and what became of it."""

from __future__ import annotations

import json
import re
import secrets
import signal
import threading
from http.client import HTTPException
from pathlib import Path

from lbg_core.group import PublishedRecord, decode
from lbg_core.journal import JournalReader
from testing.broker.embedded import EmbeddedBroker
from testing.broker.small_disk import on_small_disk, seen_by
from testing.pipeline.reference import judge
from testing.sidecar.process import BATCH, PROMPT, Sidecar, create
from testing.waiting import GUARD_S

Place = tuple[str, int, int]


class Posting(threading.Thread):
    """Posts one batch after another until nobody answers; `told`: the places of those that were answered."""

    def __init__(self, sidecar: Sidecar, group: str) -> None:
        super().__init__()
        self.told: list[Place] = []
        self._sidecar = sidecar
        self._group = group

    def run(self) -> None:
        while True:
            about = {"specversion": "1.0", "source": "/t", "type": "t"}
            events = [{**about, "id": secrets.token_hex(8), "partitionkey": str(n)} for n in range(10)]
            try:
                body = json.dumps(events).encode()
                status, text = self._sidecar.ask("POST", f"/v1/publish/{self._group}", body, BATCH)
            except (OSError, HTTPException):
                return
            assert status == 200, text
            self.told += [
                (each["publisher"], each["hash"], each["seq"]) for each in json.loads(text)["published"]
            ]


def stop(sidecar: Sidecar) -> None:
    sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.process.wait(timeout=GUARD_S) == 0, sidecar.text


def test_journals_of_what_is_published_through_it_and_consumed_hold_both_sides_of_every_message(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    create(broker, "whole")
    journal = tmp_path / "journal"
    sidecar = Sidecar(broker, tmp_path, "whole", PROMPT, LBG_JOURNAL=str(journal))
    sidecar.until(sidecar.ready)
    sidecar.publish("whole", 500)
    sidecar.until(lambda: sidecar.acked() == 500)
    stop(sidecar)
    judged = judge(JournalReader(journal))["whole"]
    assert (judged.verdict, judged.published, judged.acknowledged) == ("sound", 500, 500)
    assert (judged.total("published"), judged.total("distinct")) == (500, 500)
    assert (judged.total("lost"), judged.total("unpublished")) == (0, 0)


def test_killed_while_many_publish_it_leaves_a_record_of_each_event_that_it_answered(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    create(broker, "killed")
    journal = tmp_path / "journal"
    sidecar = Sidecar(broker, tmp_path, "killed", PROMPT, LBG_JOURNAL=str(journal))
    sidecar.until(sidecar.ready)
    posting = [Posting(sidecar, "killed") for _ in range(4)]
    for each in posting:
        each.start()
    sidecar.until(lambda: all(len(each.told) >= 300 for each in posting))
    sidecar.process.kill()
    for each in posting:
        each.join(timeout=GUARD_S)
    told = {place for each in posting for place in each.told}

    again = Sidecar(broker, tmp_path, "killed", PROMPT, LBG_JOURNAL=str(journal), LBG_NAME="again")
    again.until(again.ready)
    again.publish("killed", 10)
    again.until(lambda: all(broker.queue(f"lbg.killed.q.{queue}")["messages"] == 0 for queue in range(2)))
    stop(again)
    judged = judge(JournalReader(journal))["killed"]
    published = [one for one in JournalReader(journal) if isinstance(one, PublishedRecord)]
    places = {(one.publisher, one.hash_, one.seq) for one in published}
    assert len(places) == len(published), "each has one record"
    assert told <= places
    assert (judged.verdict, judged.total("lost")) == ("sound", 0)
    assert judged.total("unpublished") <= 4 * 10, "what was under way, and answered to nobody"


def test_on_a_full_disk_it_goes_on_publishing_and_its_log_says_that_records_are_lost(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    create(broker, "full")
    disk = tmp_path / "disk"
    disk.mkdir()
    sidecar = Sidecar(
        broker, tmp_path, "full", PROMPT, under=on_small_disk(disk, 64), LBG_JOURNAL=str(disk / "journal")
    )
    sidecar.until(sidecar.ready)
    for _ in range(5):
        sidecar.publish("full", 200)
    sidecar.until(lambda: sidecar.acked() == 1000)
    told = re.findall(r"publishing to full: .*(No space left on device|being written again)", sidecar.text)
    # A short write may still find room behind a long one that did not. Once for each turn, not for each record.
    assert told, sidecar.text
    assert told == [("No space left on device", "being written again")[turn % 2] for turn in range(len(told))]
    for file in seen_by(sidecar.process.pid, disk / "journal").iterdir():
        whole = [decode(line) for line in file.read_bytes().splitlines(keepends=True)]
        assert whole, "what had room is whole"
    stop(sidecar)
