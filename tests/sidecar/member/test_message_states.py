"""Every state of a message and every hold of its attachment, with every event."""

from __future__ import annotations

import itertools
from collections import deque

import pytest

from lbg_sidecar.core.delivery import Attachment, InFlight, Outcome
from lbg_sidecar.core.lanes import Lanes
from lbg_sidecar.core.message_states import (
    HANDOFF_HOLDS,
    IS_FIRST,
    IS_RUNNING,
    IS_UNDERWAY,
    NEXT,
    NO_HOLD,
    Event,
    Hold,
    IllegalTransitionError,
    State,
)

HOLDS = [
    NO_HOLD,
    *Hold,
    *(one | other for one, other in itertools.combinations(Hold, 2)),
    HANDOFF_HOLDS | Hold.PARKED_KEYS | Hold.KEY_MOVES,
]
NEVER_RESTS = (State.ARRIVED, State.TAKEN)
"""A message leaves these states before anything else happens."""


def ways() -> dict[State, tuple[Event, ...]]:
    """The shortest way to each state, from the arrival of a message."""
    found: dict[State, tuple[Event, ...]] = {State.ARRIVED: ()}
    due = deque([State.ARRIVED])
    while due:
        state = due.popleft()
        for event in Event:
            new = NEXT[state][event]
            if new is not None and new not in found:
                found[new] = (*found[state], event)
                due.append(new)
    return found


WAYS = ways()


class Situation:
    """A message in some state, and one behind it in its lane where it is the first."""

    def __init__(self, state: State) -> None:
        self.lanes, self.attachment = Lanes(concurrency=4), Attachment(0, 2)
        self.former = Attachment(0, 1)
        """The channel before, through which a call of the same lane runs on where the message waits for that."""
        self.message, self.behind = self._message("m", 1), self._message("n", 2)
        if state is State.AFTER_CALL:
            self._call_in_former()
        if state is State.BEHIND:
            self._admit(self._message("o", 3))
        self._admit(self.message, as_fence=Event.FENCE in WAYS[state])
        if IS_FIRST[state]:
            self._admit(self.behind)
        for event in WAYS[state][1:]:
            self.apply(event)
        assert self.message.state is state

    def _message(self, number: str, tag: int) -> InFlight:
        message = InFlight(self.attachment, tag, key="k", identity=("p", 0, tag), delivery=number)
        message.lane = "k"
        return message

    def _admit(self, message: InFlight, *, as_fence: bool = False) -> None:
        self.attachment.ack_window.delivered([message])
        if as_fence:
            self.lanes.move(message, Event.FENCE)
        else:
            self.lanes.admit(self.attachment, [message])

    def _call_in_former(self) -> None:
        call = InFlight(self.former, 1)
        call.lane = "k"
        self.former.ack_window.delivered([call])
        self.lanes.admit(self.former, [call])
        assert self.lanes.take() is call
        self.lanes.move(call, Event.CALL)
        self.lanes.close(self.former, self.former.ack_window.leave())

    def apply(self, event: Event) -> None:
        if event is Event.TAKE:
            found = self.lanes.take()
            assert (found is None) == (self.message.state is State.AFTER_CALL)
        elif event is Event.WAIT and self.message.state is State.AFTER_CALL:
            pass  # with the `take`
        elif event is Event.DELAY:
            self.lanes.delay(self.message, 5.0)
        elif event is Event.PUT_BACK:
            self.lanes.put_back(self.message)
        elif event is Event.CLOSE:
            self.lanes.close(self.attachment, self.attachment.ack_window.leave())
        else:
            self.lanes.move(self.message, event)

    def places(self) -> list[str]:
        """The collections that have the message."""
        of, lanes, message = self.attachment, self.lanes, self.message
        collections = {
            "ready": [one for *_, one in of.ready],
            "shelved": of.shelved,
            "behind": of.lanes.get("k") or (),
            "running": of.running,
            "slots": lanes.running,
            "underway": of.underway,
            "awaiting": lanes.awaiting,
            "after call": list(itertools.chain(*lanes.after_call.values())),
            "delayed": lanes.delayed,
        }
        return [name for name, collection in collections.items() if message in collection]


def places_of(state: State, holds: Hold) -> list[str]:
    """The collections that have a message in this state: it was the only one that was taken."""
    if state is State.READY:
        return ["ready"] if holds in (NO_HOLD, Hold.DRAIN) else ["shelved"]
    if IS_RUNNING[state]:
        return ["running", "slots"]
    if IS_UNDERWAY[state]:
        return ["underway"]
    named = {
        State.BEHIND: "behind",
        State.AWAITING: "awaiting",
        State.AFTER_CALL: "after call",
        State.DELAYED: "delayed",
    }
    return [named[state]] if state in named else []


@pytest.mark.parametrize("state", [one for one in State if one not in NEVER_RESTS], ids=lambda one: one.name)
def test_each_event_in_each_state_and_hold(state: State) -> None:
    for holds, event in itertools.product(HOLDS, Event):
        situation = Situation(state)
        message, behind, attachment = situation.message, situation.behind, situation.attachment
        attachment.highest = message.tag  # it was started, or one that was delivered after it
        situation.lanes.hold(attachment, holds)
        before = situation.places()
        assert before == places_of(state, holds), (holds, event)
        new = NEXT[state][event]
        if new is None:
            with pytest.raises(IllegalTransitionError):
                situation.lanes.move(message, event)
            assert (message.state, situation.places()) == (state, before), (holds, event)
            continue
        if event is Event.TAKE and holds not in (NO_HOLD, Hold.DRAIN):
            assert situation.lanes.take() is None, "what is held starts nothing"
            continue
        situation.apply(event)
        assert message.state is new, (holds, event)
        assert situation.places() == places_of(new, holds), (holds, event)
        if attachment.closed:
            assert behind.state in (State.ARRIVED, State.GONE)
        elif IS_FIRST[state] and not IS_FIRST[new]:
            assert behind.state is State.READY, "its lane goes on"
        elif IS_FIRST[state]:
            assert behind.state is State.BEHIND, "its lane waits"
        if new >= State.ABANDONED:
            assert message.outcome is Outcome.RELEASED, "nobody knows what became of it"


def test_no_message_is_without_a_way_on() -> None:
    assert set(WAYS) == set(State), "each state is reached"
    for state in State:
        if state not in (State.DONE, State.GONE):
            assert any(NEXT[state][event] not in (None, state) for event in Event), state
        if state not in (*NEVER_RESTS, State.GONE):
            assert NEXT[state][Event.CLOSE] in (State.GONE, State.ABANDONED), (
                "its channel may close at any time"
            )
    assert not any(NEXT[State.GONE])


def test_a_message_is_settled_once() -> None:
    for state in (State.DONE, State.ABANDONED, State.GONE):
        assert NEXT[state][Event.FINISH] is None
        assert NEXT[state][Event.CALL] is None


def test_only_a_message_on_its_turn_is_called() -> None:
    assert [state for state in State if NEXT[state][Event.CALL] is not None] == [State.TAKEN]
    assert [state for state in State if NEXT[state][Event.TAKE] is not None] == [State.READY]
