"""Requests of administrators: messages that this member holds are shown, skipped, or watched."""

from __future__ import annotations

from itertools import islice

from lbg_core.group import SequenceSet
from lbg_core.group.held_messages import HeldState
from lbg_core.group.members_protocol import ANSWER_PREFIX, KeyRequest, Peek, Skip, SkipOutcome, Skipped, Watch
from lbg_sidecar.core.delivery import InFlight, Outcome
from lbg_sidecar.core.effects import Post, Show, ShowKey
from lbg_sidecar.core.finished import FinishedMessages
from lbg_sidecar.core.message_states import State
from lbg_sidecar.core.part import Context, Part
from lbg_sidecar.core.status_report import ActivityMonitor

SHOWN_MAX = 1000
"""Messages in an answer to a peek."""

RECORDS_SHOWN_MAX = 1000
"""Finished messages in an answer about a key."""

STREAMS_SHOWN_MAX = 32
RUNS_SHOWN_MAX = 64
"""Streams in an answer about a key, and runs of numbers of each."""

_HELD_STATES = {
    State.REFUSED: HeldState.REFUSED,
    State.FORWARDING: HeldState.MOVING,
    State.PARKING: HeldState.PARKING,
    State.SETTLING: HeldState.PROCESSED,
    State.REPUBLISHING: HeldState.PROCESSED,
}


def held_state(in_flight: InFlight) -> HeldState:
    """State of a message whose outcome is open. Requests are answered by it."""
    if (found := _HELD_STATES.get(in_flight.state)) is not None:
        return found
    if in_flight in in_flight.attachment.poisoned:
        return HeldState.POISONED
    if in_flight.is_called:
        return HeldState.RUNNING
    return HeldState.RETRYING if in_flight.calls else HeldState.WAITING


def _shown(held: list[InFlight], limit: int) -> tuple[tuple[InFlight, HeldState], ...]:
    return tuple((in_flight, held_state(in_flight)) for in_flight in held[: min(limit, SHOWN_MAX)])


_NOT_SKIPPED = {
    HeldState.PROCESSED: SkipOutcome.PROCESSED,
    HeldState.PARKING: SkipOutcome.PARKING,
    HeldState.MOVING: SkipOutcome.MOVING,
}
"""Answers about messages in these states; in any other a message is not poisoned, or is skipped."""

_SKIPPED = {Outcome.DEAD: SkipOutcome.DEAD_LETTER, Outcome.ACK: SkipOutcome.PROCESSED}
"""Answers about messages that were to be skipped, by their outcome."""


class Requests(Part):
    def __init__(self, context: Context, activity: ActivityMonitor, finished: FinishedMessages) -> None:
        super().__init__(context)
        self._activity = activity
        self._finished = finished
        self._skips: list[tuple[InFlight, str]] = []
        """Messages that are to be dead letters, and whom to answer."""

    def receive(self, request: Peek | KeyRequest | Skip | Watch, group: str, now: float) -> None:
        match request:
            case Watch():
                self._reports.watch(request.seconds, now)
                if request.keys:
                    self._activity.watch(request.seconds, now)
            case Skip():
                self._skip(request, group)
            case Peek():
                self._peek(request, group)
            case KeyRequest():
                self._show_key(request)

    def _peek(self, request: Peek, group: str) -> None:
        held = [
            in_flight
            for in_flight in self._bindings.held()
            if request.queue is None or in_flight.queue == request.queue
            if request.id is None or request.id in (in_flight.id, in_flight.id_in(group))
        ]
        self._effects.append(Show(request, len(held), _shown(held, request.limit)))

    def _show_key(self, request: KeyRequest) -> None:
        every = list(self._bindings.held(with_copies=True))
        held = [one for one in every if one.key == request.key]
        found = list(self._finished.of_key(request.key))
        records = found[max(0, len(found) - min(request.records, RECORDS_SHOWN_MAX)) :]
        identities = [one.identity for one in held] + [one.message.identity for one in records]
        streams = dict.fromkeys(one[:2] for one in identities if one is not None)
        numbers = {
            name: SequenceSet(self._processed.runs_of(name)) for name in islice(streams, STREAMS_SHOWN_MAX)
        }
        for one in every:
            if one.identity is not None and (known := numbers.get(one.identity[:2])) is not None:
                known.add(one.identity[2])
        self._effects.append(
            ShowKey(
                request,
                len(held),
                _shown(held, request.limit),
                tuple(records),
                len(found) - len(records),
                len(self._finished),
                self._finished.since,
                tuple((*name, tuple(one.runs()[-RUNS_SHOWN_MAX:])) for name, one in numbers.items()),
            )
        )

    def _skip(self, request: Skip, group: str) -> None:
        found = (one for one in self._bindings.held() if request.id in (one.id, one.id_in(group)))
        in_flight = next(found, None)
        if in_flight is None:
            self._answer(request.answer, SkipOutcome.NOT_HELD)
            return
        state = held_state(in_flight)
        if state not in (HeldState.POISONED, HeldState.REFUSED):
            self._answer(request.answer, _NOT_SKIPPED.get(state, SkipOutcome.NOT_POISONED))
            return
        self._skips.append((in_flight, request.answer))
        if state is HeldState.POISONED:
            self._dispatcher.skip(in_flight)
            if in_flight.is_called:
                self._answer(request.answer, SkipOutcome.RUNNING)

    def flushed(self, now: float) -> None:
        """Answers for messages that have an outcome now. One that was released may be in its place, a dead letter or
        both: nobody knows."""
        if not self._skips:
            return
        for in_flight, answer in self._skips:
            if in_flight.outcome in _SKIPPED:
                self._answer(answer, _SKIPPED[in_flight.outcome])
        self._skips = [one for one in self._skips if one[0].outcome is None]

    def _answer(self, answer: str, outcome: SkipOutcome) -> None:
        if (me := self._roster.me) is not None:
            self._effects.append(Post(Skipped(me, outcome), to=f"{ANSWER_PREFIX}{answer}"))
