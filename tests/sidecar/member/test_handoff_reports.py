"""Reports of a handoff, as text and as fields."""

from __future__ import annotations

import pytest

from lbg_core.group.member_state import Identity, QueueState, Role, Status
from lbg_core.group.members_protocol import Changes, Hello, Leave, QueueReport, Takeover
from lbg_sidecar.core.effects import HandoffAbandoned, LogEffect, Moved, StandingBy
from lbg_sidecar.core.timings import Timings
from lbg_sidecar.io.log_events import EffectLogger
from testing.member.membership import Posting
from testing.member.world import World
from testing.virtual_time import in_virtual_time

OTHER = Identity(1, "other", "1-1")
THIRD = Identity(2, "third", "2-1")


def log(effect: LogEffect | Takeover, me: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        EffectLogger("me", "g").log(effect, me)

    with caplog.at_level("INFO"):
        in_virtual_time(scene)()


@pytest.mark.parametrize(
    ("effect", "text", "fields"),
    [
        (
            Moved(3, 1, "rebalance", 0.002, 0.001, 0),
            "me: queue 3 handed over to member 1 (rebalance): drained in 2.0 ms, closed in 1.0 ms",
            {"event": "handed_over", "from": 0, "to": 1, "why": "rebalance", "delivered_again": 0},
        ),
        (
            Moved(3, None, "leave", 0.5, 0.001, 2),
            "me: queue 3 released (leave): drained in 500.0 ms, closed in 1.0 ms; 2 running calls were aborted, their "
            "messages are delivered again",
            {"from": 0, "to": None, "why": "leave", "delivered_again": 2},
        ),
        (
            HandoffAbandoned(3, 1, "rebalance", 4, 3.0, times=1, next_s=6.0),
            "me: queue 3 stays (rebalance): 4 calls did not end within 3.0 s; the handoff is postponed (1 in a row), "
            "the next waits up to 6.0 s",
            {
                "event": "kept",
                "from": 0,
                "to": 1,
                "why": "rebalance",
                "running": 4,
                "times": 1,
                "next_seconds": 6.0,
            },
        ),
        (
            HandoffAbandoned(3, 1, "rebalance", 0, 3.0, times=1, next_s=6.0),
            "me: queue 3 stays (rebalance): the broker has not confirmed or applied enough within 3.0 s; the handoff "
            "is postponed (1 in a row), the next waits up to 6.0 s",
            {"event": "kept", "running": 0},
        ),
        (
            Takeover(3, 1, "leave", planned=True, pause_s=0.004),
            "me: serving queue 3 (from member 1, planned: leave, paused for 4.0 ms)",
            {"event": "taken_over", "from": 1, "to": 0, "why": "leave", "pause_seconds": 0.004},
        ),
        (
            Takeover(3, None, "unserved", planned=False, pause_s=None),
            "me: serving queue 3 (no member was serving it)",
            {"event": "taken_over", "from": None, "to": 0, "why": "unserved", "pause_seconds": None},
        ),
        (
            Takeover(3, None, "lost", planned=False, pause_s=None),
            "me: serving queue 3 (no member was serving it)",
            {"event": "taken_over", "from": None, "why": "lost"},
        ),
        (
            Takeover(3, 1, "lost", planned=False, pause_s=None),
            "me: serving queue 3 (from member 1, without a handoff)",
            {"event": "taken_over", "from": 1, "why": "lost"},
        ),
        (
            Takeover(3, 1, "leave", planned=False, pause_s=None),
            "me: serving queue 3 (from member 1, which left)",
            {"event": "taken_over", "from": 1, "why": "leave"},
        ),
    ],
)
def test_a_handoff_is_one_line_of_text_and_of_fields(
    effect: Moved | HandoffAbandoned | Takeover,
    text: str,
    fields: dict[str, object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    log(effect, 0, caplog)
    (record,) = caplog.records
    assert text in record.getMessage()
    told = vars(record)["fields"]
    assert (told["queue"], told["member"]) == (3, "me")
    assert fields.items() <= told.items()


def test_a_member_beyond_the_queues_says_that_it_stands_by(caplog: pytest.LogCaptureFixture) -> None:
    log(StandingBy(8, 8), 8, caplog)
    assert caplog.messages == ["me: standing by: 8 queues, 8 members at work"]


def test_standing_by_is_reported_once_when_members_beyond_the_queues_are_settled() -> None:
    world = World(3, queue_count=2, hash_count=2)
    for _ in range(3):
        world.join()
        world.run(1)
    world.run(30)
    reports = [(name, event) for _, name, event in world.events if isinstance(event, StandingBy)]
    assert reports == [("m2", StandingBy(2, 2))]


def roster() -> Posting:
    """Of member 0, which knows that member 1 serves queue 3."""
    roster = Posting(Timings(), uniform=lambda: 0.5, incarnation=lambda: "0-1")
    roster.join(0, "me", 0.0)
    roster.receive(Hello(OTHER), 0.0)
    roster.receive(serving(OTHER, active=True), 0.0)
    return roster


def serving(who: Identity, *, active: bool) -> QueueReport:
    return QueueReport(who, (QueueState(3, Role.PRIMARY, active, Status.READY),))


def test_who_serves_a_queue_and_did_not_announce_to_give_it_has_lost_it() -> None:
    assert roster().last_server(3) == (1, "lost")
    assert roster().last_server(2) == (None, "unserved")


def test_a_new_life_of_a_member_serves_nothing_before_it_reports_it() -> None:
    known = roster()
    known.receive(Hello(Identity(1, "other", "1-2")), 1.0)
    assert known.last_server(3) == (None, "unserved")


def test_who_is_known_to_be_gone_is_still_named() -> None:
    known = roster()
    known.receive(Changes(THIRD, lost=(OTHER,)), 1.0)
    assert known.last_server(3) == (1, "lost")
    assert known.last_server(3) == (None, "unserved")  # told once


def test_who_left_without_a_successor_has_not_lost_its_queue() -> None:
    known = roster()
    known.receive(Leave(OTHER), 1.0)
    assert known.last_server(3) == (1, "leave")


def test_what_somebody_serves_meanwhile_was_not_left_behind_by_another() -> None:
    known = roster()
    known.receive(Changes(THIRD, lost=(OTHER,)), 1.0)
    known.receive(serving(THIRD, active=True), 1.0)
    known.receive(serving(THIRD, active=False), 2.0)
    assert known.last_server(3) == (None, "unserved")
