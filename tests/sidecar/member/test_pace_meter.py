"""A member's pace: from what it was done with and the calls that run, without a count for a message."""

from __future__ import annotations

import pytest

from lbg_core.group.members_protocol import Hello
from lbg_core.group.pace import MEASURED_S, WINDOW_S, Pace
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.dispatcher import Order, Rules
from lbg_sidecar.core.effects import Attach, Done
from lbg_sidecar.core.exclusive import ExclusiveMember
from lbg_sidecar.core.pace_meter import CALLS_MAX
from lbg_sidecar.core.queue_bindings import BalancingRules
from lbg_sidecar.message import ACK, Verdict, retry
from testing.member.bare_member import setup_of
from testing.member.native_member import NativeMember


class Running:
    """A member that serves the one queue of its group; `now` is its clock."""

    def __init__(self, rules: Rules) -> None:
        self.now = 0.0
        self.machine = ExclusiveMember(setup_of(BalancingRules(queue_count=1), rules))
        self.machine.connected(0, 0.0)
        assert self.machine.roster.me is not None
        self.machine.returned(Hello(self.machine.roster.me), 0, 0.0)
        self.machine.tick(0.0)
        (self._attachment,) = (one.attachment for one in self.machine.effects if isinstance(one, Attach))
        self.machine.attached(self._attachment, 0.0)
        self._number = 0

    def begin(self, *keys: str | None) -> list[InFlight]:
        """Calls that begin now."""
        arrivals = []
        for key in keys:
            self._number += 1
            identity = ("p", 1, self._number)
            arrivals.append(InFlight(self._attachment, self._number, key=key, identity=identity, hash_=1))
        self.machine.deliver(self._attachment, arrivals, self.now)
        calls = []
        while (call := self.machine.take(self.now)) is not None:
            calls.append(call)
        return calls

    def end(self, *calls: InFlight, verdict: Verdict = ACK) -> None:
        """They end now, and what is done is acknowledged as the shell does it."""
        for call in calls:
            self.machine.end(call, verdict, self.now)
        self.machine.flush(self.now)
        for effect in self.machine.effects:
            if isinstance(effect, Done):
                self.machine.finished.add(effect.deliveries, self.now, settled=effect.settled)
        self.machine.effects.clear()

    def call(self, key: str | None, call_s: float) -> None:
        calls = self.begin(key)
        self.after(call_s)
        self.end(*calls)

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.machine.tick(self.now)

    @property
    def pace(self) -> Pace | None:
        return self.machine.content().pace


def test_it_is_unknown_until_it_was_measured_once() -> None:
    member = Running(Rules())
    assert member.pace is None
    member.after(MEASURED_S - 0.1)
    assert member.pace is None
    member.after(0.2)
    assert member.pace == Pace()
    assert member.machine.describe(member.now)["pace"]["p50_s"] is None


def test_a_busy_member_reports_times_and_shares_of_the_last_minute() -> None:
    member = Running(Rules(concurrency=2))
    for _ in range(30):
        member.call("hot", 0.9)
        member.call("cold", 0.1)
    member.after(MEASURED_S)
    pace = member.pace
    assert pace is not None
    assert pace.calls == 60
    assert (pace.p50_s, pace.p99_s) == (pytest.approx(0.1), pytest.approx(0.9))
    assert pace.busy == pytest.approx(0.5 * 30 / 35, abs=0.01)
    assert pace.finished_hz == pytest.approx(60 / 35, rel=0.01)
    assert [(one.key, one.calls, one.p50_s) for one in pace.keys] == [
        ("hot", 30, pytest.approx(0.9)),
        ("cold", 30, pytest.approx(0.1)),
    ]
    assert pace.keys[0].busy == pytest.approx(27 / 35, abs=0.02)


def test_what_is_older_than_the_window_does_not_count() -> None:
    member = Running(Rules(concurrency=1))
    for _ in range(40):
        member.call("k", 0.5)
    while member.now < 20 + WINDOW_S + 2 * MEASURED_S:
        member.after(0.5)
    assert member.pace == Pace(), "a member at rest sends the same report again"


def test_calls_that_hang_make_it_busy_and_have_no_time_yet() -> None:
    member = Running(Rules(concurrency=2, call_timeout_s=1000))
    member.begin("a", "b")
    for _ in range(100):
        member.after(1.0)
    pace = member.pace
    assert pace is not None
    assert (pace.busy, pace.calls, pace.p50_s, pace.finished_hz) == (1.0, 0, None, 0.0)
    assert [(one.key, one.busy, one.p50_s) for one in pace.keys] == [("a", 1.0, None), ("b", 1.0, None)]


def test_a_message_that_is_tried_again_makes_it_busy_and_is_timed_at_its_end() -> None:
    member = Running(Rules(concurrency=1))
    calls = member.begin("k")
    member.after(3.0)
    member.end(*calls, verdict=retry("no"))
    member.after(MEASURED_S)
    assert member.pace is not None
    assert member.pace.calls == 0
    assert member.pace.busy == pytest.approx(3 / 8, abs=0.01)


def test_where_a_queue_is_one_lane_its_member_makes_one_call_at_a_time() -> None:
    member = Running(Rules(concurrency=16, order=Order.QUEUE))
    for _ in range(10):
        member.call(None, 1.0)
    assert member.pace is not None
    assert member.pace.busy == 1.0
    assert member.pace.keys == ()


def test_of_very_many_calls_the_latest_are_read() -> None:
    member = Running(Rules(concurrency=16))
    for _ in range(5 * CALLS_MAX // 16):
        member.end(*member.begin(*(f"k{number}" for number in range(16))))
        member.now += 0.001
    member.after(MEASURED_S)
    pace = member.pace
    assert pace is not None
    assert CALLS_MAX <= pace.calls < 2 * CALLS_MAX
    assert pace.p50_s == 0


def test_a_member_to_which_the_broker_assigns_messages_has_one_too() -> None:
    member = NativeMember()
    attachment = member.join()
    member.deliver(attachment, ("a", 1, 0))
    (call,) = member.take_all()
    member.machine.tick(0.0)
    member.machine.end(call, ACK, 2.0)
    member.machine.flush(2.0)
    (done,) = member.took(Done)
    member.machine.finished.add(done.deliveries, 2.0, settled=True)
    member.machine.tick(MEASURED_S)
    pace = member.machine.content().pace
    assert pace is not None
    assert pace.p50_s is not None
    assert [one.key for one in pace.keys] == ["a"]
