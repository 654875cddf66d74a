"""The demo's scene, fed with heartbeats and the validator's events by hand."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lbg_core.admin.record import Record
from lbg_core.admin.snapshot import (
    UNKNOWN,
    Handoffs,
    MessageGroupsStatus,
    PartitionsStatus,
    PartitionStatus,
    QueueStatus,
    SessionsStatus,
    SessionStatus,
    Snapshot,
)
from lbg_core.group import MODES, UNCOUNTED_MODES, Engine, GroupSpec
from lbg_core.group.member_state import Identity, Status
from lbg_core.group.members_protocol import Beat, Gone, Hello, Leave
from lbg_core.publisher import BadRow, RowOptions, open_source
from lbg_core.publisher.input.rows import count_rows
from lbgroup.demo.command import rate_for
from lbgroup.demo.model import COLOURS, DemoModel
from lbgroup.demo.screen import PlainView, frame, status_line
from lbgroup.demo.script import MEMBERS, SCRIPT, Act, Do, Pacing, script_of
from lbgroup.live_map import MemberState, Meter
from testing.admin.reports import beat_of

ENGINE = Engine.parse("LBG", "0.1.0")


def model(mode: Any = "Exclusive") -> DemoModel:
    queues = 1 if mode in UNCOUNTED_MODES else 2
    spec = GroupSpec(
        "demo", "demo", hash_count=8, queue_count=queues, queue_size_mb=1, client_username="demo", mode=mode
    )
    return DemoModel("title", rows=1000, spec=spec, engine=ENGINE)


def seen(made: DemoModel, *ready: Any, native: Any = None) -> None:
    """The queues have so many messages."""
    names = ["lbg.demo.q"] if native is not None else [f"lbg.demo.q.{number}" for number in range(len(ready))]
    queues = {name: QueueStatus(ready=one, native=native) for name, one in zip(names, ready, strict=True)}
    made.group.on_snapshot(Snapshot(ENGINE, record=Record(made.group.spec.to_record()), queues=queues))


def scene() -> DemoModel:
    made = model()
    for name in ("m1", "m2"):
        made.on_process_state(name, MemberState.STARTING)
    made.on_message(beat("m1", 0, primary=0, active=(0,)))
    made.on_message(beat("m2", 1, primary=1, active=(1,)))
    return made


def beat(name: str, index: int, *, primary: int, active: tuple[int, ...], in_flight: int = 0) -> Beat:
    fields = {
        "index": index,
        "name": name,
        "incarnation": "aa",
        "rebalance": "Ready",
        "queues": [
            {
                "queue": queue,
                "role": "primary" if queue == primary else "secondary",
                "active": queue in active,
                "in_flight": in_flight if queue in active else 0,
                "delivered": 0,
                "status": "Ready",
            }
            for queue in (0, 1)
        ],
        "counts": {"delivered": 0},
    }
    return beat_of(fields)


def progress(delivered: int, **more: object) -> dict[str, object]:
    return {
        "event": "progress",
        "delivered": delivered,
        "rewinds": 0,
        "inversions": 0,
        "per_queue": {"0": delivered},
        "per_member": {"m1": delivered},
        "holders": {"0": "m1", "1": "m2"},
        **more,
    }


def moved(was: str, now: str, at_us: int, queue: int = 1) -> dict[str, object]:
    return {
        "event": "queue_moved",
        "queue": queue,
        "was_name": was,
        "now_name": now,
        "at_us": at_us,
        "pause_us": 9000,
        "waited_us": 4000,
    }


def bindings(made: DemoModel, name: str) -> dict[int, Any]:
    rows = made.description.reported_services
    return {row.number: one for row in rows for member, one in row.bindings if member.name == name}


def test_a_member_is_live_from_its_first_heartbeat_on() -> None:
    made = scene()
    assert made.states["m2"] is MemberState.LIVE
    assert [(number, one.is_primary, one.active) for number, one in bindings(made, "m2").items()] == [
        (0, False, False),
        (1, True, True),
    ]


def test_a_late_heartbeat_of_a_killed_member_does_not_bring_it_back() -> None:
    made = scene()
    made.on_process_state("m2", MemberState.KILLED, at_us=1)
    assert bindings(made, "m2") == {}
    made.on_message(beat("m2", 1, primary=1, active=(1,)))
    assert made.states["m2"] is MemberState.KILLED
    assert bindings(made, "m2") == {}
    assert [(kill.member, kill.at_us) for kill in made.kills] == [("m2", 1)]


def test_a_member_that_comes_back_joins_with_its_first_heartbeat_and_not_before() -> None:
    made = scene()
    made.on_process_state("m2", MemberState.KILLED, at_us=1)
    made.on_process_state("m2", MemberState.STARTING)
    assert bindings(made, "m2") == {}
    made.on_message(beat("m2", 1, primary=1, active=()))
    assert (made.states["m2"], list(bindings(made, "m2"))) == (MemberState.LIVE, [0, 1])


def test_moves_away_from_the_dead_are_crashes_until_it_holds_a_queue_again() -> None:
    made = scene()
    made.now_s = 10
    made.on_process_state("m2", MemberState.KILLED, at_us=10_000_000)
    made.validated(moved("m2", "m1", 10_005_000))
    made.validated(moved("m1", "m2", 14_000_000))
    made.validated(moved("m2", "m1", 20_000_000))
    moves = [note.text for note in made.notes if note.kind == "move"]
    assert moves == [
        "queue 1: m2 → m1, 4.0 ms (crash)",
        "queue 1: m1 → m2, 4.0 ms (planned)",
        "queue 1: m2 → m1, 4.0 ms (planned)",
    ]
    assert [name for _, name in made.spans[1]] == ["m1", "m2", "m1"]


def test_messages_that_the_scene_does_not_show_change_no_member() -> None:
    made = scene()
    somebody = Identity(7, "somebody", "aa")
    for message in (Beat(somebody), Leave(somebody), Gone(somebody, Identity(1, "m2", "aa"))):
        made.on_message(message)
    assert [made.states[name] for name in ("m1", "m2")] == 2 * [MemberState.LIVE]


def test_what_is_left_to_deliver_counts_each_message_once() -> None:
    made = scene()
    made.validated(progress(600, rewinds=100))
    assert made.share == 0.5


def test_what_waits_is_unknown_while_one_queue_could_not_be_read() -> None:
    made = scene()
    assert "unknown waiting" in status_line(made)
    seen(made, 5, UNKNOWN)
    assert "unknown waiting" in status_line(made)
    seen(made, 5, 2)
    assert "7 waiting" in status_line(made)


def test_acts_come_in_order_by_what_is_delivered_and_not_too_close() -> None:
    pacing = Pacing([Act(0.1, "a", ""), Act(0.2, "b", ""), Act(0.3, "c", "")], gap_s=5)
    assert pacing.due(0.05, 1) is None
    assert pacing.due(0.9, 2).title == "a"
    assert pacing.due(0.9, 6) is None
    assert pacing.due(0.9, 7).title == "b"
    assert not pacing.is_over
    assert pacing.due(0.9, 12).title == "c"
    assert pacing.is_over
    assert pacing.due(1.0, 100) is None


def test_the_script_plays_the_documents_figures() -> None:
    running = {"m1", "m2"}
    crowd = [len(running)]
    for act in SCRIPT:
        for step in act.steps:
            if step.do is Do.START:
                assert step.member not in running
                running.add(step.member)
            else:
                running.remove(step.member)
            crowd.append(len(running))
    assert crowd == [2, 1, 2, 3, 4, 3, 2, 1]
    assert [act.at for act in SCRIPT] == sorted(act.at for act in SCRIPT)


def test_a_small_input_is_stretched_and_a_large_one_takes_longer() -> None:
    assert rate_for(24_000, play_s=60, max_rate=2500) == 400
    assert rate_for(336_776, play_s=60, max_rate=2500) == 2500
    assert rate_for(5, play_s=60, max_rate=2500) == 1


def test_a_meter_gives_the_rate_of_the_last_two_seconds() -> None:
    meter = Meter()
    for second in range(10):
        meter.read(100 * second if second < 5 else 400 + 10 * (second - 4), float(second))
    assert meter.rate(9.0) == pytest.approx(10)
    assert meter.rate(60.0) == 0
    assert Meter().rate(0) == 0


def test_an_input_is_counted_and_a_bad_row_of_it_is_raised(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"k": "a"}\n{"k": "b"}\n')
    with open_source(str(file)) as source:
        assert count_rows(source, RowOptions(key_field="k")) == 2
    file.write_text('{"k": "a"}\n{"k": \n')
    with open_source(str(file)) as source, pytest.raises(BadRow):
        count_rows(source, RowOptions(key_field="k"))


def drawn(made: DemoModel, width: int = 140, height: int = 45) -> str:
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False)
    console.print(frame(made, width, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_screen_draws_the_lines_of_the_documents_figures() -> None:
    made = scene()
    made.begins(SCRIPT[0])
    made.on_message(beat("m1", 0, primary=0, active=(0, 1)))
    made.on_message(beat("m2", 1, primary=1, active=()))
    made.now_s = 3
    made.validated(progress(100))
    picture = drawn(made)
    for line in ("━━━━━━━▶", "┅┅┅┅┅┅┅▶", "────────", "┄┄┄┄┄┄┄┄"):
        assert line in picture
    assert "Two instances service four queues" in picture


@pytest.mark.parametrize(("width", "height"), [(140, 45), (100, 30), (80, 24), (40, 10)])
def test_the_screen_fits_whatever_terminal_there_is(width: int, height: int) -> None:
    made = scene()
    made.begins(SCRIPT[1])
    made.on_process_state("m2", MemberState.KILLED, at_us=1)
    made.now_s = 8
    made.validated(moved("m2", "m1", 5))
    lines = drawn(made, width, height).splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(
    "act",
    {act.title: act for mode in MODES for act in script_of(mode, is_native=True)}.values(),
    ids=lambda act: act.title,
)
def test_eighty_columns_are_enough_for_the_words_of_every_act(act: Act) -> None:
    made = scene()
    made.begins(act)
    words = " ".join(drawn(made, 80, 24).split())
    assert act.title in words
    assert act.text in words


def test_every_member_has_a_colour() -> None:
    assert set(COLOURS) == set(MEMBERS)


def test_without_a_terminal_every_event_is_written_once_and_the_state_now_and_then() -> None:
    made, lines = scene(), list[str]()
    view = PlainView(lines.append)
    view(made)
    assert lines[0] == "title"
    before = len(lines)
    view(made)
    assert len(lines) == before == 1 + len(made.notes)
    made.now_s = 6
    made.begins(SCRIPT[1])
    view(made)
    assert any("m2 is killed" in line for line in lines)
    assert status_line(made) in lines[-1]
    assert len(lines) == before + 2


def shared_scene(mode: str, native: object) -> DemoModel:
    made = model(mode)
    for name, index in (("m1", 0), ("m2", 1)):
        made.on_process_state(name, MemberState.STARTING)
        made.on_message(beat(name, index, primary=0, active=(0,), in_flight=5))
    seen(made, 30, native=native)
    return made


def test_partitions_are_where_the_broker_says_and_not_where_members_do() -> None:
    native = PartitionsStatus(
        "HoldDown",
        True,
        Handoffs(1, 0, 0),
        partitions=(
            PartitionStatus(0, "Ready", "lbg.demo.member.0", 3, 2),
            PartitionStatus(1, "Unbound", "lbg.demo.member.1", 4, 0),
        ),
    )
    made = shared_scene("Partitioned", native)
    made.on_message(beat("m1", 0, primary=0, active=(0, 1)))
    assert list(bindings(made, "m1")) == [0]
    assert bindings(made, "m2") == {}
    assert "partition 1" in drawn(made)
    assert "holding" in drawn(made)
    assert status_line(made).endswith("partitions 0:m1 1:-")


def test_keys_and_members_are_shown_where_a_key_is_at_one_member() -> None:
    made = shared_scene("MessageGroups", MessageGroupsStatus(12, 5))
    assert "12 message groups, 5 at a member now" in drawn(made)
    assert "5 of 12 keys at a member" in status_line(made)


def test_each_session_is_shown_with_its_numbers() -> None:
    sessions = (
        SessionStatus("m1", "live", "lbg.demo.member.0", 70, 64, 6, None),
        SessionStatus("m2", "stranded", None, 41, 37, 4, 1.0),
    )
    made = shared_scene("Sessions", SessionsStatus(False, 9, sessions))
    text = drawn(made)
    for words in ("stranded", "70", "64", "9 messages without a session yet"):
        assert words in text
    assert "sessions m1:64/70 m2:37/41" in status_line(made)


@pytest.mark.parametrize("mode", ["Partitioned", "MessageGroups", "Sessions"])
def test_what_the_broker_does_not_report_is_shown_as_unknown(mode: str) -> None:
    text = drawn(shared_scene(mode, UNKNOWN))
    assert "unknown" in text or "not known" in text


def test_every_mode_has_a_play_of_its_own_and_rabbitmq_that_of_the_queues() -> None:
    plays = {mode: script_of(mode, is_native=True) for mode in MODES}
    assert len({id(play) for play in plays.values()}) == len(MODES)
    assert script_of("Partitioned", is_native=False) is SCRIPT
    for play in plays.values():
        assert [act.at for act in play] == [act.at for act in SCRIPT]


def test_a_member_reports_by_two_keys_and_without_the_queues_that_do_not_concern_it() -> None:
    made = scene()
    whole = beat("m1", 0, primary=0, active=(0,))
    served, other = whole.queues
    whole = replace(whole, queues=(served, replace(other, status=Status.UNBOUND)))
    part = replace(whole, queues=(served,))
    for message in (part, whole, part, Hello(whole.sender)):
        made.on_message(message)
        rows = made.group.description.reported_services
        assert [row.server for row in rows] == ["m1", "m2"]
        assert [len(row.bindings) for row in rows] == [2, 1]
