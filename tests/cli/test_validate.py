"""`lbg validate` on a broker process, fed with what members would republish."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from lbg_core.client import BasicProperties, ConfirmingPublisher, connect
from lbg_core.group import Names
from testing.command_line import Lbg, Where, start_lbg
from testing.output_documents import checked
from testing.waiting import GUARD_S


@pytest.fixture
def group(lbg: Lbg, broker: Where, unique: str) -> str:
    assert lbg("group", "create", unique, "--no-user", "--broker", broker.broker).status == 0
    return unique


class Validator:
    """`lbg validate --json` as a process; `events` are its lines."""

    def __init__(self, broker: Where, group: str, *options: str) -> None:
        environment = {"LBG_BROKER": broker.broker}
        self._process = start_lbg("validate", "--json", "--group", group, *options, environment=environment)
        assert self._process.stdout is not None
        while checked("validate", self._process.stdout.readline())["event"] != "listening":
            pass

    def interrupt(self) -> None:
        os.kill(self._process.pid, signal.SIGINT)

    def end(self) -> tuple[int, list[dict[str, object]]]:
        out, err = self._process.communicate(timeout=GUARD_S)
        assert "Traceback" not in err
        return self._process.returncode, [checked("validate", line) for line in out.splitlines()]


def republish(
    broker: Where,
    group: str,
    messages: Iterable[tuple[int, int, bool]],
    more: Mapping[str, object] | None = None,
) -> None:
    """(sequence number, member, redelivered) of key `a`, hash 5, queue 1; `more` headers of all."""

    async def run() -> None:
        connection = await connect(broker.broker, name="a member")
        channel = await connection.open_channel()
        await channel.confirm_select()
        publisher = ConfirmingPublisher(channel)
        for seq, member, redelivered in messages:
            headers = {
                "lbg-key": "a",
                "lbg-publisher": "p",
                "lbg-seq": seq,
                "lbg-ts": time.time_ns() // 1000,
                "lbg-hash": 5,
                "lbg-queue": 1,
                "lbg-member": member,
                "lbg-member-name": f"m{member}",
                "lbg-redelivered": redelivered,
                "lbg-delivered-at": time.time_ns() // 1000,
                **(more or {}),
            }
            properties = BasicProperties(headers=headers, delivery_mode=2)
            await publisher.publish(Names(group).validate, "", b"{}", properties=properties, mandatory=True)
        await connection.close()

    asyncio.run(run())


def expectation(tmp_path: Path, next_seq: int) -> Path:
    file = tmp_path / "published.json"
    epoch = {"publisher": "p", "next_seq": {"5": next_seq}}
    file.write_text(json.dumps({"published": next_seq, "epochs": [epoch]}))
    return file


def test_it_ends_when_all_that_was_published_has_come(broker: Where, group: str, tmp_path: Path) -> None:
    validator = Validator(broker, group, "--expect", str(tmp_path / "published.json"))
    republish(broker, group, [(seq, 0, False) for seq in range(500)])
    # Written last, as a publisher does at its end.
    expectation(tmp_path, 500)
    status, events = validator.end()
    assert status == 0
    report = events[-1]
    assert (report["event"], report["ok"], report["delivered"], report["lost"]) == ("report", True, 500, 0)


def test_an_inversion_and_a_loss_are_told_and_fail(broker: Where, group: str, tmp_path: Path) -> None:
    validator = Validator(broker, group, "--expect", str(expectation(tmp_path, 5)), "--idle-timeout", "1")
    republish(broker, group, [(0, 0, False), (2, 0, False), (1, 0, False)])
    status, events = validator.end()
    assert status == 1
    (error,) = [event for event in events if event["event"] == "sequence_error"]
    assert (error["kind"], error["expected"], error["received"]) == ("inversion", 3, 1)
    assert (events[-1]["lost"], events[-1]["order_errors"]) == (2, 1)


def test_a_crash_is_a_move_with_rewinds_and_no_failure(broker: Where, group: str, tmp_path: Path) -> None:
    validator = Validator(broker, group, "--expect", str(expectation(tmp_path, 4)))
    republish(broker, group, [(0, 0, False), (1, 0, False), (1, 1, True), (2, 1, True), (3, 1, False)])
    status, events = validator.end()
    assert status == 0
    kinds = [event["event"] for event in events if event["event"] not in ("progress", "listening")]
    assert kinds == ["sequence_error", "shard_moved", "queue_moved", "report"]
    (move,) = events[-1]["moves"]
    assert (move["was_name"], move["now_name"], move["redelivered"], move["repeated"]) == ("m0", "m1", 2, 1)


@pytest.mark.parametrize(
    ("options", "ok"), [((), False), (("--clock-skew", "0.002"), False), (("--clock-skew", "0.004"), True)]
)
def test_a_key_at_two_members_at_once_fails_unless_their_clocks_explain_it(
    broker: Where, group: str, tmp_path: Path, options: tuple[str, ...], ok: bool
) -> None:
    validator = Validator(broker, group, "--expect", str(expectation(tmp_path, 2)), *options)
    times = [{"lbg-started-at": at, "lbg-finished-at": at + 10_000} for at in (1_000_000, 1_007_000)]
    for member, of in enumerate(times):
        republish(broker, group, [(member, member, False)], {**of, "lbg-incarnation": f"i{member}"})
    status, events = validator.end()
    report = events[-1]
    assert (report["ok"], status) == (ok, int(not ok))
    assert (report["overlaps"], report["uncertain_overlaps"]) == ((0, 1) if ok else (1, 0))
    (told,) = (event for event in events if event["event"] == "overlap")
    assert (told["seq"], told["member"], told["other_member"], told["uncertain"]) == (1, 1, 0, ok)


def test_ctrl_c_ends_it_with_its_report(broker: Where, group: str) -> None:
    validator = Validator(broker, group)
    republish(broker, group, [(0, 0, False)])
    validator.interrupt()
    status, events = validator.end()
    assert status == 0
    assert events[-1]["event"] == "report"


def test_there_is_one_validator_of_a_group_at_a_time(lbg: Lbg, broker: Where, group: str) -> None:
    validator = Validator(broker, group)
    second = lbg("validate", "--group", group, "--broker", broker.broker)
    assert second.status == 1
    assert f"another validator of group '{group}' is at work" in second.last_line
    validator.interrupt()
    validator.end()


def test_its_queue_is_gone_afterwards(lbg: Lbg, broker: Where, group: str) -> None:
    assert lbg("validate", "--group", group, "--broker", broker.broker, "--idle-timeout", "0.1").status == 0
    assert "validation" not in lbg("group", "show", group, "--json", *broker.options).out


def test_a_person_reads_the_same_as_text(lbg: Lbg, broker: Where, group: str) -> None:
    lbg("validate", "--group", group, "--broker", broker.broker, "--idle-timeout", "0.1", "--keep-queue")
    republish(broker, group, [(0, 0, False), (1, 0, False), (0, 1, True), (1, 1, True), (2, 1, False)])
    said = lbg("validate", "--group", group, "--broker", broker.broker, "--idle-timeout", "0.5")
    assert said.status == 0
    assert "sequence error: rewind: key 'a' of hash 5: expected 2, received 0 (redelivered)" in said.out
    assert "shard moved: hash 5 (queue 1) was member 0, now member 1" in said.out
    assert "queue moved: 1 was m0, now m1" in said.out
    assert f"group {group}: nothing lost, nothing out of order" in said.out


@pytest.mark.parametrize(
    "text", [None, "not json", "{}", '{"epochs": [{"publisher": "p", "next_seq": [1]}]}']
)
def test_an_expectation_that_cannot_be_read_is_named(
    lbg: Lbg, broker: Where, group: str, tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "published.json"
    if text is not None:
        file.write_text(text)
    said = lbg(
        *("validate", "--group", group, "--broker", broker.broker, "--idle-timeout", "0.1"),
        *("--expect", str(file)),
    )
    assert said.status == 1
    assert said.last_line.startswith(f"lbg: error: --expect {file}: ")


def test_a_group_that_is_not_there_is_named(lbg: Lbg, broker: Where) -> None:
    said = lbg("validate", "--group", "nobody", "--broker", broker.broker)
    assert (said.status, "there is no group 'nobody'" in said.last_line) == (1, True)
