"""The demo's report: repeats and pauses told apart by what caused them."""

from __future__ import annotations

import io
import json

from rich.console import Console

from lbg_core.group import UNCOUNTED_MODES, Engine, GroupSpec, Mode
from lbgroup.demo.model import DemoModel
from lbgroup.demo.report import Kill, demo_report
from lbgroup.demo.screen import summary


def move(was: str, now: str, at_us: int, *, queue: int = 0, repeated: int = 0, redelivered: int = 0):
    return {
        "queue": queue,
        "was": 0,
        "now": 1,
        "was_name": was,
        "now_name": now,
        "at_us": at_us,
        "pause_us": 10_000,
        "waited_us": 2_000,
        "repeated": repeated,
        "redelivered": redelivered,
    }


def validated(*moves: dict[str, object], **more: object) -> dict[str, object]:
    return {
        "ok": True,
        "mode": "Exclusive",
        "delivered": 103,
        "distinct": 100,
        "lost": 0,
        "duplicated": sum(int(str(one["repeated"])) for one in moves),
        "order_errors": 0,
        "per_queue": {"0": 60, "1": 43},
        "per_member": {"m1": 100, "m2": 3},
        "moves": list(moves),
        "sequence_errors": [],
        "lost_ranges": [],
        **more,
    }


def rewind(key: str | None, at_us: int, *, redelivered: bool = True) -> dict[str, object]:
    return {"kind": "rewind", "key": key, "at_us": at_us, "redelivered": redelivered}


KILL = Kill("m2", 1.0, 1_000_000)


def report(*moves: dict[str, object], kills: tuple[Kill, ...] = (KILL,), **more: object) -> dict[str, object]:
    return demo_report(
        validated=validated(*moves, **more),
        published={"published": 100},
        kills=kills,
        source={"engine": "RabbitMQ 4.0.5 at here", "input": "f", "key": "k", "rate": 1},
        seconds=12.34,
    )


def test_repeats_after_a_kill_are_told_apart_from_repeats_on_planned_moves() -> None:
    found = report(
        move("m2", "m1", 1_006_000, queue=0, repeated=2, redelivered=4),
        move("m2", "m1", 1_009_000, queue=1, repeated=1, redelivered=1),
        move("m1", "m2", 3_000_000),
        move("m2", "m1", 5_000_000),
    )
    assert found["repeated_after_kills"] == 3
    assert found["repeated_on_planned_moves"] == 0
    assert found["repeated_otherwise"] == 0
    assert found["kills"] == [
        {
            "member": "m2",
            "at_s": 1.0,
            "queues": [0, 1],
            "in_flight": 5,
            "repeated": 3,
            "first_delivery_elsewhere_us": 9000,
        }
    ]
    assert found["handoffs"]["planned"]["count"] == 2
    assert found["handoffs"]["crash"]["count"] == 2


def test_a_repeat_on_a_planned_move_is_not_hidden() -> None:
    assert report(move("m1", "m2", 1, repeated=1), kills=())["repeated_on_planned_moves"] == 1


def test_a_report_is_json_and_has_what_was_asked_for() -> None:
    found = json.loads(json.dumps(report()))
    wanted = {
        "published",
        "delivered",
        "lost",
        "duplicated",
        "order_errors",
        "handoffs",
        "per_queue",
        "kills",
    }
    assert wanted <= set(found)


def test_in_partitions_a_message_without_a_key_came_again_because_of_the_kill_if_no_move_tells() -> None:
    moves = (move("m2", "m1", 1_006_000, repeated=1, redelivered=2), move("m1", "m2", 3_000_000))
    after, before = rewind(None, 1_007_000), rewind(None, 900_000)
    later, unmarked = rewind(None, 3_000_001), rewind(None, 1_007_000, redelivered=False)
    for repeats, after_kills, otherwise in (
        ([after, rewind("k", 1_006_000)], 2, 0),
        ([before, rewind("k", 1_006_000)], 1, 1),
        ([later, rewind("k", 1_006_000)], 1, 1),
        ([unmarked, rewind("k", 1_006_000)], 1, 1),
    ):
        told = report(*moves, mode="Partitioned", duplicated=2, sequence_errors=repeats)
        assert (told["repeated_after_kills"], told["repeated_otherwise"]) == (after_kills, otherwise)
        assert told["kills"][0]["repeated"] == after_kills
        assert told["kills"][0]["in_flight"] == after_kills + 1


def scene(mode: Mode = "Exclusive") -> DemoModel:
    queues = 1 if mode in UNCOUNTED_MODES else 2
    spec = GroupSpec(
        "t", "t", hash_count=4, queue_count=queues, queue_size_mb=1, client_username="t", mode=mode
    )
    return DemoModel("t", rows=1, spec=spec, engine=Engine.parse("LBG", "0.1.0"))


def test_the_last_screen_says_whether_it_held() -> None:
    for ok, words in ((True, "nothing lost, nothing out of order"), (False, "FAILED: 4 lost")):
        found = report(move("m2", "m1", 1_006_000), ok=ok, lost=0 if ok else 4)
        console = Console(width=120, file=io.StringIO())
        console.print(summary(scene(), found, width=120))
        assert isinstance(console.file, io.StringIO)
        assert words in console.file.getvalue()


def in_sessions(**more: object) -> dict[str, object]:
    sessions = {"last_numbers": {"m1": 60, "m2": 40}, "in_two_places": 0}
    return report(mode="Sessions", duplicated=3, redelivered=7, sessions=sessions, **more)


def test_where_nothing_moves_what_came_again_came_again_because_of_the_kill() -> None:
    told = in_sessions()
    assert (told["repeated_after_kills"], told["repeated_otherwise"]) == (3, 0)
    assert [(kill["in_flight"], kill["repeated"]) for kill in told["kills"]] == [(7, 3)]


def test_the_last_screen_of_sessions_says_that_no_message_is_in_two_and_shows_no_moves() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(summary(scene("Sessions"), in_sessions(), width=100))
    drawn = console.export_text()
    assert "in two sessions" in drawn
    assert "m1:60 m2:40" in drawn
    assert "moves" not in drawn
