"""Timeline of a group: spans of queues, events, samples, and their bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lbg_console.documents import group_document, overview_row
from lbg_console.observed_group import ObservedGroup
from lbg_console.timeline import (
    EVENTS_MAX,
    KEPT_S,
    SAMPLE_S,
    SAMPLES_MAX,
    SPANS_MAX,
    UNSERVED_AFTER_S,
    Timeline,
)
from lbg_core.admin.describe import Description
from lbg_core.admin.groups import create_group, show_group
from lbg_core.group import GroupSpec
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Activity, Takeover
from testing.admin.fake_admin import FakeAdmin
from testing.admin.reports import beat_body


def spans(timeline: Timeline, now_s: float, queue: int = 0) -> list[tuple[int, str | None, str]]:
    document = timeline.to_json(now_s)
    (row,) = [one for one in document["queues"] if one["number"] == queue]
    return [(one["from"] // 1000, one["member"], one["cause"]) for one in row["spans"]]


def test_spans_are_adjacent_and_say_why_they_began() -> None:
    timeline = Timeline(0)
    timeline.serve(0, "a", 10)
    moved = timeline.moved(0, "b", 20, "to b", former="a", is_planned=True, pause_s=0.004, within_s=8)
    assert timeline.serve(0, None, 30, is_crash=True) is not None
    timeline.serve(0, "c", 31)
    assert spans(timeline, 40) == [
        (10, "a", ""),
        (20, "b", "planned"),
        (30, None, "crash"),
        (31, "c", "crash"),
    ]
    (row,) = timeline.to_json(40)["queues"]
    assert [one["to"] for one in row["spans"]] == [20_000, 30_000, 31_000, None]
    assert moved.to_json()["pause_s"] == 0.004


def test_a_queue_counts_as_unserved_only_after_a_while_unless_its_member_crashed() -> None:
    timeline = Timeline(0)
    timeline.serve(0, "a", 10)
    assert timeline.serve(0, None, 20) is None
    timeline.serve(0, "b", 21)
    assert spans(timeline, 30) == [(10, "a", ""), (21, "b", "")]
    assert timeline.serve(0, None, 40) is None
    event = timeline.serve(0, None, 40 + UNSERVED_AFTER_S)
    assert event is not None
    assert (event.at_s, event.kind, event.fields["queue"]) == (40, "unserved", 0)
    assert timeline.serve(0, None, 50) is None
    assert spans(timeline, 60)[-1] == (40, None, "")


def test_a_move_that_was_seen_is_completed_by_its_report() -> None:
    timeline = Timeline(0)
    seen = timeline.moved(1, "b", 20, "seen", former="a", is_planned=None, pause_s=None, within_s=8)
    told = timeline.moved(1, "b", 21, "told", former="a", is_planned=False, pause_s=None, within_s=8)
    assert (seen.id, told.text, told.fields["cause"]) == (told.id, "told", "crash")
    again = timeline.moved(1, "b", 60, "later", former="a", is_planned=None, pause_s=None, within_s=8)
    assert again.id != told.id
    assert [one["text"] for one in timeline.to_json(70)["events"]] == ["told", "later"]


def test_the_first_server_of_a_queue_took_it_over_from_nobody() -> None:
    timeline = Timeline(0)
    timeline.serve(0, None, 10)
    timeline.moved(0, "a", 20, "to a", former=None, is_planned=False, pause_s=None, within_s=8)
    assert spans(timeline, 30) == [(10, None, ""), (20, "a", "")]


def test_the_memory_of_a_timeline_is_bounded() -> None:
    timeline = Timeline(0)
    for number in range(3 * SPANS_MAX):
        timeline.serve(0, f"m{number % 2}", number)
    for number in range(3 * EVENTS_MAX):
        timeline.add("problem", str(number), number)
    for number in range(3 * SAMPLES_MAX):
        known = {
            "rate": 1.0,
            "publish_rate": None,
            "ready": None,
            "unacked": 0,
            "oldest_s": None,
            "members": 2,
            "dead_letters": 0,
        }
        timeline.samples.add(number * SAMPLE_S, known)
    now_s = 3 * SAMPLES_MAX * SAMPLE_S
    document = timeline.to_json(now_s, 0, now_s)
    assert len(document["samples"]["at"]) == SAMPLES_MAX
    assert document["samples"]["ready"] == [None] * SAMPLES_MAX, "unknown is not zero"
    assert document["known_from"] == (now_s - KEPT_S) * 1000
    document = timeline.to_json(3 * EVENTS_MAX, 0)
    assert len(document["queues"][0]["spans"]) == SPANS_MAX
    assert document["queues"][0]["known_from"] == 2 * SPANS_MAX * 1000
    assert len(document["events"]) == EVENTS_MAX


def test_a_part_of_the_timeline_has_the_spans_that_reach_into_it() -> None:
    timeline = Timeline(0)
    for at_s, member in ((10, "a"), (20, "b"), (30, "c")):
        timeline.serve(0, member, at_s)
        timeline.add("problem", member, at_s)
    document = timeline.to_json(100, 15, 25)
    assert [one["member"] for one in document["queues"][0]["spans"]] == ["a", "b"]
    assert [one["text"] for one in document["events"]] == ["b"]


def beat(
    index: int, *, active: set[int], incarnation: str = "", paused: bool = False, acked: int = 0
) -> bytes:
    """Of member m0, m1, …, in a group of two queues."""
    queues = [
        {"queue": number, "role": "primary" if number in active else "secondary", "active": number in active}
        | {"status": "Ready", "in_flight": 0, "delivered": acked}
        for number in range(2)
    ]
    sender = {"index": index, "name": f"m{index}", "incarnation": incarnation or f"of m{index}"}
    return beat_body({**sender, "queues": queues, "counts": {"acked": acked}, "paused": paused})


async def described(group: ObservedGroup) -> Description:
    admin = FakeAdmin()
    spec = GroupSpec("orders", "orders", hash_count=4, queue_count=2, queue_size_mb=1, client_username="app")
    await create_group(admin, spec)
    admin.beats = list(group.beats)
    for queue, one in admin.queues.items():
        admin.queues[queue] = type(one)(ready=0, unacked=0, consumers=2, native=None)
    return await show_group(admin, "orders")


class Played:
    """A group of two queues that is observed each second from time 100 on."""

    def __init__(self) -> None:
        self.group = ObservedGroup("orders", 100)
        self.now_s = 100.0

    async def second(self, *messages: bytes) -> None:
        self.now_s += 1
        for message in messages:
            self.group.on_message(message, self.now_s)
        await self.describe()

    async def describe(self) -> None:
        self.group.describe(await described(self.group), self.now_s, now_us=0, waiting_us=None)

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(one["kind"], one["text"]) for one in self.group.timeline.to_json(self.now_s)["events"]]


M0 = Identity(0, "m0", "of m0")


def message(kind: str, **fields: Any) -> bytes:
    return json.dumps({"v": 1, "type": kind, "sender": M0, **fields}).encode()


async def test_a_member_that_others_report_as_lost_is_gone_at_once_with_its_queues() -> None:
    played = Played()
    for _ in range(6):
        await played.second(beat(0, active={0}), beat(1, active={1}))
    assert played.events == []
    lost = message("changes", lost=[[1, "m1", "of m1"]])
    assert played.group.on_message(lost, played.now_s)
    assert not played.group.on_message(lost, played.now_s), "it is reported once"
    await played.describe()
    assert played.events == [
        ("crashed", "m1 is gone: it was killed, or its connection was lost"),
        ("unserved", "queue 1 is served by nobody"),
    ]
    assert spans(played.group.timeline, played.now_s, 1)[-1] == (106, None, "crash")
    row, document = overview_row(played.group, played.now_s), group_document(played.group, played.now_s)
    assert row is not None
    assert document is not None
    assert (row["strip"], row["servers"], row["members"]) == ("RA", [0, None], 1)
    assert [one["name"] for one in document["members"]] == ["m0"]
    await played.second(beat(1, active={1}), beat(0, active={0, 1}))
    assert played.events[-1] == ("moved", "queue 1 from m1 to m0")
    assert spans(played.group.timeline, played.now_s, 1)[-1] == (107, "m0", "crash")


async def test_a_member_without_a_mailbox_is_gone_and_its_last_words_do_not_count() -> None:
    played = Played()
    for _ in range(6):
        await played.second(beat(0, active={0, 1}))
    assert list(played.group.probes(played.now_s, is_watched=False)) == [M0], "it is alone"
    assert not played.group.on_gone(Identity(0, "m0", "of before"), played.now_s)
    assert played.group.on_gone(M0, played.now_s)
    await played.second(beat(0, active={0, 1}, acked=1))
    assert played.group.sightings == {}
    await played.second(beat(0, active={0, 1}, incarnation="b"))
    assert [kind for kind, _ in played.events] == ["crashed", "unserved", "unserved", "joined"]


async def test_only_lone_and_silent_members_are_asked_for_unless_somebody_looks() -> None:
    played = Played()
    await played.second(beat(0, active={0}), beat(1, active={1}))
    group = played.group
    assert list(group.probes(played.now_s, is_watched=False)) == []
    assert len(list(group.probes(played.now_s, is_watched=True))) == 2
    await played.second(beat(0, active={0}))
    await played.second(beat(0, active={0}))
    assert list(group.probes(played.now_s, is_watched=False)) == [Identity(1, "m1", "of m1")]
    for _ in range(3):
        await played.second(beat(0, active={0}))
    document = group_document(group, played.now_s)
    assert document is not None
    assert [(one["name"], one["state"]) for one in document["members"]] == [("m0", "live"), ("m1", "silent")]
    row = overview_row(group, played.now_s)
    assert row is not None
    assert row["silent"] == 1


async def test_joins_leaves_moves_pauses_and_acts_are_events() -> None:
    played = Played()
    for _ in range(6):
        await played.second(beat(0, active={0, 1}))
    await played.second(beat(0, active={0, 1}), beat(1, active=set()))
    played.group.on_message(message("move", queue=1, to=1, move="m"), played.now_s)
    await played.second(beat(0, active={0}), beat(1, active={1}))
    played.group.on_activity(
        Activity(Identity(1, "m1", "of m1"), (("acme", 3),), Takeover(1, 0, "join", True, 0.0042)),
        played.now_s,
    )
    assert played.group.keys_of("m1", played.now_s) == [("acme", 3)]
    await played.second(beat(0, active={0}, paused=True), beat(1, active={1}, paused=True))
    played.group.note_act("guest: pause done", played.now_s)
    await played.second(message("leave"), beat(1, active={0, 1}))
    assert [one for one in played.events if one[0] not in ("problem", "solved")] == [
        ("joined", "m1 joined"),
        ("moved", "queue 1 from m0 to m1 in 4.2 ms"),
        ("act", "guest: pause done"),
        ("left", "m0 left"),
        ("moved", "queue 0 from m0 to m1"),
    ]
    assert spans(played.group.timeline, played.now_s, 1)[-1] == (108, "m1", "planned")


async def test_a_problem_near_its_limit_is_one_event_and_over_when_it_stays_away() -> None:
    played = Played()

    async def seconds(count: int, *, by: int | None = None) -> None:
        for _ in range(count):
            reports = [json.loads(beat(index, active={index})) for index in (0, 1)]
            if by is not None:
                reports[by]["queues"][1] |= {"poisoned": 1, "poisoned_ids": ["p-1"], "poisoned_keys": ["k"]}
            await played.second(*(json.dumps(one).encode() for one in reports))

    def found() -> list[tuple[str, str]]:
        return [one for one in played.events if "poisoned" in one[1]]

    text = "lbg.orders.q.1 has 1 poisoned message at m1, which blocks later messages of its key; keys: 'k'"
    await seconds(6)
    await seconds(2, by=1)
    await seconds(19)
    await seconds(2, by=1)
    await seconds(10, by=0)  # another member has the queue
    assert found() == [("problem", text)]
    await seconds(25)
    assert found() == [("problem", text), ("solved", f"no more: {text.replace('m1', 'm0')}")]


def paced(index: int, p50_s: float, busy: float, acked: int) -> bytes:
    keys = [{"key": f"of {index}", "busy": busy, "calls": 9, "p50_s": p50_s, "p99_s": p50_s}]
    pace = {"busy": busy, "finished_hz": 1, "calls": 100, "p50_s": p50_s, "p99_s": p50_s, "keys": keys}
    report = json.loads(beat(index, active={index}, acked=acked))
    return json.dumps({**report, "pace": pace}).encode()


async def test_a_slow_member_and_a_hot_key_are_in_the_document_of_a_group() -> None:
    played = Played()
    await played.second(beat(0, active={0}), beat(1, active={1}))
    document = group_document(played.group, played.now_s)
    assert document is not None
    assert document["publish_rate"] is None
    assert document["lag_trend"] == "unknown"
    assert document["members"][0]["pace"] == dict.fromkeys(("p50", "p99", "busy"), "unknown")
    for second in range(8):
        await played.second(paced(0, 0.012, 0.3, 10 * second), paced(1, 0.25, 1.0, second))
    document, row = group_document(played.group, played.now_s), overview_row(played.group, played.now_s)
    assert document is not None
    assert row is not None
    fast, slow = document["members"]
    assert (fast["pace"], fast["slow"]) == ({"p50": "12 ms", "p99": "12 ms", "busy": "30 %"}, None)
    assert (slow["pace"]["p50"], slow["slow"]) == ("250 ms", "21 times the 12 ms of its peers")
    assert document["hot_keys"][0] == {"key": "of 1", "text": "100 % busy, p50 250 ms, p99 250 ms"}
    assert document["lag_trend"] == "steady"
    assert row["publish_rate"] == document["publish_rate"] == pytest.approx(77 / 8, abs=0.1)
    sample = played.group.sample(played.now_s)
    assert sample is not None
    assert sample["publish_rate"] == row["publish_rate"]
    assert played.group.timeline.to_json(played.now_s)["samples"]["publish_rate"] == [row["publish_rate"]]


async def test_what_is_no_message_of_a_member_changes_nothing() -> None:
    group = ObservedGroup("orders", 100)
    nested = b"[" * 100_000
    bodies = (
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"type": 1}',
        b'{"type": "beat"}',
        b'{"v": 1, "type": "leave", "sender": [1e999, "m0", ""]}',
        nested,
        message("changes", lost=[1]),
    )
    for body in (*bodies, message("changes", lost=5), message("move"), message("leave", sender=None)):
        assert not group.on_message(body, 101)
    assert group.sightings == {}
