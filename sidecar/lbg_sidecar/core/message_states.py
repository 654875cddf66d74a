"""States of a message in flight, what each event makes of them, and what holds an attachment.

What the table does not have is illegal, and raises `IllegalTransitionError`. `Lanes` alone changes a state, and keeps
the collections that are indexes of it. The model is `rabbit_fifo` (RabbitMQ's quorum queue): a message is in one place,
and each command has one clause. While the group is paused nothing is taken (`Dispatcher.take`), and every other event
is as ever: calls end, waits end, fences are passed. tests/sidecar/member/test_message_states.py walks each state with
each event.
"""

from __future__ import annotations

import enum
from typing import Final


class State(enum.IntEnum):
    """State of a message, from its arrival until it is settled or forgotten.

    While a message is the first of its lane, others of its lane wait (`IS_FIRST`). The states of `IS_UNDERWAY` wait for
    an answer of the broker.
    """

    ARRIVED = 0
    """Not admitted yet."""
    BEHIND = 1
    """Behind another one of its lane."""
    READY = 2
    """The first of its lane: it is taken on its turn, unless its attachment is held."""
    AFTER_CALL = 3
    """Found on its turn behind a call of its lane that goes on though its attachment is closed."""
    TAKEN = 4
    """It is its turn. In the same step the first that applies decides what becomes of it: a call of its lane goes on
    (AFTER_CALL); it was processed before, or is a dead letter; its hash left this queue (FORWARDING), or is not done
    elsewhere (AWAITING); its key is parked; it may have ended the process of a member (called alone, refused or
    parked). Else it is called."""
    CALLED = 5
    """Inside the application."""
    LAST_CALL = 6
    """Inside the application, and to be refused unless this call succeeds: an administrator skips it."""
    DELAYED = 7
    """Until a time at which its turn is again: before its next call, or before it asks anew for what it waits for. A
    poisoned message is here between its calls: its attempts are used up, and it is retried, in a group that blocks and,
    where it cannot be parked, in one that parks. In its next attachment it is not poisoned until it fails once more."""
    AWAITING = 8
    """Of a change of the number of queues: until its state is known, and messages of its hash in other queues (the old
    one, then its staging queue), or their calls here, are done."""
    REFUSED = 9
    """On its way to the dead letters, in any group: skipped, dropped by the application, not copyable, or its attempts
    are used up. Its lane waits."""
    FORWARDING = 10
    """Behind the fence of its hash, which was passed, and on its way to the queue to which the hash went. Its lane
    waits."""
    REPUBLISHING = 11
    """Processed, and on its way to the validator."""
    PARKING = 12
    """On its way to the parking queue, until its entry in the stream of parked keys is confirmed and read. Its lane
    goes on."""
    SETTLING = 13
    """A parked message that is done, until the entry that says so is confirmed. Its lane goes on."""
    FENCE = 14
    """A fence of a change of the number of queues. It is passed when its attachment waits for no ack of a hash that
    leaves the queue, also of what came behind it or was released: until then all are called here as ever."""
    PASSING = 15
    """A fence that is passed, until the entry that says so is read: messages of its hashes are AWAITING."""
    DONE = 16
    """It has its outcome, and is acknowledged in its turn."""
    ABANDONED = 17
    """Inside the application, and not this member's any more: it has no effect on the broker. Success is remembered."""
    GONE = 18
    """The broker's again, or another member's."""


class Event(enum.IntEnum):
    """Event of a message."""

    ADMIT = 0
    QUEUE = 1
    """It is admitted behind another one of its lane."""
    FENCE = 2
    TURN = 3
    """It waits no more for anything but its turn."""
    TAKE = 4
    WAIT = 5
    """Its lane has a call through a closed attachment."""
    PUT_BACK = 6
    """It is called alone, and other calls have not ended."""
    CALL = 7
    DELAY = 8
    AWAIT = 9
    """It becomes AWAITING."""
    REFUSE = 10
    SKIP = 11
    """An administrator skips it: a poisoned message only. Of another one the request is answered (`Requests`)."""
    FORWARD = 12
    REPUBLISH = 13
    PARK = 14
    SETTLE = 15
    PASS = 16
    FINISH = 17
    """It has its outcome."""
    RELEASE = 18
    """It is the broker's again; of a released copy, which comes again by itself, nothing goes back."""
    RECALL = 19
    """The broker requests it: where it assigns messages to members. Keys do not move there."""
    REASSIGN = 20
    """The broker has delivered it to another consumer."""
    CLOSE = 21
    """The channel of its attachment is gone."""
    END = 22
    """A call without effect has ended."""


class IllegalTransitionError(RuntimeError):
    """An event that cannot be in this state: a bug."""


_S = State
_WAITING: Final = (_S.BEHIND, _S.READY, _S.AFTER_CALL, _S.DELAYED, _S.AWAITING)
_RUNNING: Final = (_S.CALLED, _S.LAST_CALL)
_CONFIRMED: Final = (_S.REFUSED, _S.FORWARDING, _S.REPUBLISHING)
"""Waiting for a confirm of the broker, which is requested until it comes. If the channel is gone first, the message is
called once more, and one that was parked only if the stream lacks its entry."""

_RECORDED: Final = (_S.PARKING, _S.SETTLING)
"""Waiting for the stream of parked keys."""

_FENCES: Final = (_S.FENCE, _S.PASSING)

_TRANSITIONS: Final[dict[Event, dict[tuple[State, ...], State]]] = {
    Event.ADMIT: {(_S.ARRIVED,): _S.READY},
    Event.QUEUE: {(_S.ARRIVED,): _S.BEHIND},
    Event.FENCE: {(_S.ARRIVED,): _S.FENCE},
    Event.TURN: {(_S.BEHIND, _S.AFTER_CALL, _S.DELAYED, _S.AWAITING): _S.READY},
    Event.TAKE: {(_S.READY,): _S.TAKEN},
    Event.WAIT: {(_S.TAKEN,): _S.AFTER_CALL},
    Event.PUT_BACK: {(_S.TAKEN,): _S.READY},
    Event.CALL: {(_S.TAKEN,): _S.CALLED},
    Event.DELAY: {(_S.TAKEN, _S.CALLED): _S.DELAYED},
    Event.AWAIT: {(_S.TAKEN,): _S.AWAITING},
    Event.REFUSE: {(_S.TAKEN, *_RUNNING): _S.REFUSED},
    Event.SKIP: {
        _RUNNING: _S.LAST_CALL,
        (_S.READY, _S.AFTER_CALL, _S.DELAYED, _S.AWAITING): _S.REFUSED,
    },
    Event.FORWARD: {(_S.TAKEN,): _S.FORWARDING},
    Event.REPUBLISH: {_RUNNING: _S.REPUBLISHING},
    Event.PARK: {(_S.TAKEN, _S.CALLED): _S.PARKING},
    Event.SETTLE: {(_S.TAKEN, *_RUNNING, _S.REFUSED): _S.SETTLING},
    Event.PASS: {_FENCES: _S.PASSING},
    Event.FINISH: {(_S.TAKEN, *_RUNNING, *_CONFIRMED, *_RECORDED, *_FENCES): _S.DONE},
    Event.RELEASE: {(_S.TAKEN, _S.CALLED): _S.GONE},
    Event.RECALL: {_WAITING: _S.GONE},
    Event.REASSIGN: {(*_WAITING, *_CONFIRMED, _S.DONE): _S.GONE, _RUNNING: _S.ABANDONED},
    Event.CLOSE: {
        (*_WAITING, *_CONFIRMED, *_RECORDED, *_FENCES, _S.DONE): _S.GONE,
        (*_RUNNING, _S.ABANDONED): _S.ABANDONED,
    },
    Event.END: {(_S.ABANDONED,): _S.GONE},
}

NEXT: Final[tuple[tuple[State | None, ...], ...]] = tuple(
    tuple(
        next((new for states, new in _TRANSITIONS[event].items() if state in states), None) for event in Event
    )
    for state in State
)
"""State behind an event, by state and event; None: illegal."""

IS_RUNNING: Final = tuple(state in (*_RUNNING, _S.ABANDONED) for state in State)
"""States that take a call's slot."""

IS_UNDERWAY: Final = tuple(state in (*_CONFIRMED, *_RECORDED, _S.PASSING) for state in State)

IS_FIRST: Final = tuple(
    state in (*_WAITING[1:], _S.TAKEN, *_RUNNING, _S.REFUSED, _S.FORWARDING, _S.ABANDONED) for state in State
)


class Hold(enum.Flag):
    """Reason for which an attachment starts no message. One that is closed has no message left to start."""

    DRAIN = enum.auto()
    """It is handed over: only what was delivered before one that was started may start."""
    HALT = enum.auto()
    """Its handoff takes too long, or its member leaves."""
    TAKEOVER = enum.auto()
    """The positions of its former consumer are not known yet."""
    PARKED_KEYS = enum.auto()
    """The parked keys are being read."""
    KEY_MOVES = enum.auto()
    """The state of the change of the number of queues is being read."""


NO_HOLD: Final = Hold(0)
HANDOFF_HOLDS: Final = Hold.DRAIN | Hold.HALT | Hold.TAKEOVER
"""A pause of the group is none of them (`Dispatcher.paused`)."""
