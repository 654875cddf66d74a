"""Log lines of a member: one for each event of a queue or a session, and few for a state that lasts.

Their values are also fields of the record (`fields`), for logs that are read by machines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Generic

from lbg_core.counted_nouns import counted
from lbg_core.group.members_protocol import Takeover
from lbg_core.group.sequences import MessageIdentity
from lbg_core.peers import printable
from lbg_sidecar.core.effects import (
    BreakerClosed,
    BreakerOpened,
    CallFailed,
    Failure,
    HandoffAbandoned,
    LiveSet,
    LogEffect,
    Moved,
    ParkedKeysUnread,
    Paused,
    Reassigned,
    Recalled,
    SessionEnded,
    SessionForgotten,
    SessionInUse,
    Stalled,
    StandingBy,
    Superseded,
    TimedOut,
)
from lbg_sidecar.core.roster import LEAVE
from lbg_sidecar.core.state_log import AttemptLog, Cause, Queue, QueueStates, ranges

log = logging.getLogger("lbg.member")


class StateLogger(Generic[Queue]):
    """Logs the states of the queues of a member or publisher, over all its connections. `fields` are of each record."""

    def __init__(self, about: str, fields: Mapping[str, object], logger: logging.Logger = log) -> None:
        self._about = about
        self._fields = fields
        self._logger = logger
        self._states: QueueStates[Queue] = QueueStates()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, cause: Cause, queue: Queue, detail: str = "") -> None:
        self._states.enter(cause, queue, self._loop.time(), detail)
        self._schedule()

    def leave(self, queue: Queue, *, event: str | None = None) -> None:
        """None for `event`: the queue is in no state any more."""
        self._states.leave(queue, self._loop.time(), event=event)
        self._schedule()

    def retain(self, queues: Collection[Queue]) -> None:
        """The group has these queues: on a new connection, or from now on."""
        self._states.retain(queues, self._loop.time())
        self._schedule()

    def disconnected(self) -> None:
        """There is no connection: nothing is known of the queues."""
        self._states.interrupt()
        self._schedule()

    def _schedule(self) -> None:
        due = self._states.next_due()
        if self._timer is not None:
            if due is not None and self._timer.when() <= due:
                return  # it comes first, and looks again
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._loop.call_at(due, self._log_due)

    def _log_due(self) -> None:
        self._timer = None
        for line in self._states.lines(self._loop.time()):
            fields = {"queues": list(line.queues), "seconds": round(line.for_s, 3), "over": line.is_over}
            self._logger.log(
                logging.INFO if line.is_over else logging.WARNING,
                "%s: %s",
                *(self._about, line.text),
                extra={"fields": {"event": line.event, **self._fields, **fields}},
            )
        self._schedule()


LIVE_GATHER_S = 1.0
"""Least time between two lines about the live members: when many join at once, each would otherwise log each."""


class LiveLogger:
    """Logs who is live: a change at once, and further ones of the next moment together."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._live: frozenset[int] | None = None
        self._logged: frozenset[int] | None = None

    def changed(self, live: frozenset[int]) -> None:
        self._live = live
        if self._timer is None:
            self._log()

    def _log(self) -> None:
        self._timer, live = None, self._live
        if live is None or live == self._logged:
            return
        self._logged = live
        self._timer = self._loop.call_later(LIVE_GATHER_S, self._log)
        log.info(
            "%s: live members: %s",
            *(self._name, _live_text(live)),
            extra={"fields": {"event": "live", "member": self._name, "live": sorted(live)}},
        )


def _live_text(live: Collection[int]) -> str:
    if not live:
        return "none"
    return f"{len(live)} (index{'' if len(live) == 1 else 'es'} {ranges(sorted(live))})"


class EffectLogger:
    """Logs effects of one member. Of calls that fail and messages that are poisoned, the first of each kind of failure
    is logged at once, and while such failures go on one at growing intervals, with their count."""

    def __init__(self, name: str, group: str) -> None:
        self._name = name
        self._group = group
        self._attempts = AttemptLog()
        self._live = LiveLogger(name)
        self._loop = asyncio.get_running_loop()

    def log(self, effect: LogEffect | Takeover, me: int | None) -> None:
        """`me` is this member's index, as far as it has one."""
        fields: dict[str, object]
        match effect:
            case LiveSet(live):
                self._live.changed(live)
            case CallFailed(kind, queue, key, identity, attempts, reason):
                fields = {"queue": queue, "key": key, "reason": reason}
                if kind in (Failure.POISONED, Failure.PARKED):
                    fields |= {"attempts": attempts}
                    self._seldom(logging.ERROR, kind.value, _call_text(self._group, effect), fields)
                else:
                    fields |= {"id": _id_of(identity), "attempt": attempts}
                    self._seldom(logging.WARNING, kind.value, _call_text(self._group, effect), fields)
            case ParkedKeysUnread(queues, waited_s):
                text = (
                    f"the stream of parked keys has not answered for {waited_s:.0f} s, so nothing of queues "
                    f"{', '.join(map(str, queues))} is delivered: are most of its nodes down?"
                )
                fields = {"queue": min(queues, default=0), "waited_s": round(waited_s, 1)}
                self._seldom(logging.WARNING, "parked_keys_unread", text, fields)
            case Paused(is_paused):
                paused = f"is paused: no new call starts until `lbg group resume {self._group}`"
                text = paused if is_paused else "is resumed"
                self._log(
                    logging.INFO, "paused" if is_paused else "resumed", f"group {self._group} {text}", {}
                )
            case _:
                self._log(*_line(effect, me))

    def _seldom(self, level: int, event: str, text: str, fields: Mapping[str, object]) -> None:
        line = self._attempts.failed(event, self._loop.time(), text=text)
        if line is not None:
            self._log(level, event, line, fields)

    def _log(self, level: int, event: str, text: str, fields: Mapping[str, object]) -> None:
        extra = {"fields": {"event": event, "member": self._name, **fields}}
        log.log(level, "%s: %s", self._name, text, extra=extra)


def _line(effect: LogEffect | Takeover, me: int | None) -> tuple[int, str, str, dict[str, object]]:
    """Level, event, text and fields of the line about an event of a queue or a session."""
    fields: dict[str, object]
    match effect:
        case BreakerOpened(reason, wait_s, is_again):
            held = "calls are held on" if is_again else "calls of the group are held"
            text = f"{held} for {wait_s:.1f} s, and then one is tried: {reason or 'no reason given'}"
            return (
                logging.WARNING,
                "calls_held",
                text,
                {"reason": reason, "seconds": wait_s, "again": is_again},
            )
        case BreakerClosed(held_s):
            text = f"calls of the group are let through again, after {held_s:.1f} s"
            return logging.INFO, "calls_released", text, {"seconds": held_s}
        case Moved(queue, to, why, drain_s, close_s, forced):
            target = "released" if to is None else f"handed over to member {to}"
            text = (
                f"queue {queue} {target} ({why}): drained in {drain_s * 1000:.1f} ms, "
                f"closed in {close_s * 1000:.1f} ms"
            )
            if forced:
                aborted = counted(forced, "running call was", "running calls were")
                again = "its message is" if forced == 1 else "their messages are"
                text += f"; {aborted} aborted, {again} delivered again"
            fields = {"queue": queue, "from": me, "to": to, "why": why}
            fields |= {"drain_seconds": drain_s, "close_seconds": close_s, "delivered_again": forced}
            return logging.INFO, "handed_over", text, fields
        case Recalled(queues, requeued, at_work):
            moved = _named(queues) if queues else "keys to a member with less load"
            text = (
                f"the broker moves {moved}: returned {counted(requeued, 'message')} that had not begun, finishing "
                f"{at_work}"
            )
            fields = {"queues": list(queues), "given_back": requeued, "at_work": at_work}
            return logging.INFO if queues else logging.DEBUG, "given_back", text, fields
        case Reassigned(queues, at_work):
            text = (
                f"the broker moved {_named(queues)}, because the handoff time ended: "
                f"{counted(at_work, 'message with a running call is', 'messages with running calls are')} delivered "
                "again, and their verdicts have no effect"
            )
            return logging.WARNING, "taken", text, {"queues": list(queues), "delivered_again": at_work}
        case HandoffAbandoned(queue, to, why, running, after_s, times, next_s):
            unconfirmed = "the broker has not confirmed or applied enough"
            cause = f"{counted(running, 'call')} did not end" if running else unconfirmed
            text = (
                f"queue {queue} stays ({why}): {cause} within "
                f"{after_s:.1f} s; the handoff is postponed ({times} in a row), the next waits up to {next_s:.1f} s"
            )
            fields = {"queue": queue, "from": me, "to": to, "why": why, "running": running}
            fields |= {"after_seconds": after_s, "times": times, "next_seconds": next_s}
            return logging.WARNING, "kept", text, fields
        case Takeover(queue, former, why, planned, pause_s):
            pause = f", paused for {pause_s * 1000:.1f} ms" if pause_s is not None else ""
            text = f"serving queue {queue} ({_source_text(former, why, planned=planned)}{pause})"
            fields = {"queue": queue, "from": former, "to": me, "why": why, "pause_seconds": pause_s}
            return logging.INFO, "taken_over", text, fields
        case Stalled(queue, ready, quiet_s):
            text = (
                f"queue {queue} is stalled: {counted(ready, 'message waits', 'messages wait')} at the broker, and "
                f"none was delivered in {quiet_s:.1f} s; subscribing again"
            )
            return (
                logging.WARNING,
                "stalled",
                text,
                {"queue": queue, "ready": ready, "quiet_seconds": quiet_s},
            )
        case TimedOut(queue, timeout_s, expected_s):
            text = (
                f"queue {queue}: the broker closed the channel, because a message was unacknowledged for longer than "
                f"its consumer timeout of {timeout_s:g} s; this member uses {expected_s:g} s: set consumer_timeout_s "
                f"to {timeout_s:g}, or raise the broker's"
            )
            return logging.WARNING, "timed_out", text, {"queue": queue, "timeout_seconds": timeout_s}
        case Superseded(queue, by, cut_off):
            text = (
                f"queue {queue} is served by member {by}, without a handoff by this one (was the broker partitioned?); "
                "attaching anew; "
                f"{counted(cut_off, 'message with a running call here is', 'messages with running calls here are')} "
                "processed there"
            )
            return logging.WARNING, "superseded", text, {"queue": queue, "by": by, "cut_off": cut_off}
        case StandingBy(queue_count, at_work):
            text = f"standing by: {counted(queue_count, 'queue')}, {counted(at_work, 'member')} at work"
            return logging.INFO, "standing_by", text, {"queues": queue_count, "at_work": at_work}
        case SessionInUse(session, why):
            text = (
                f"session {session!r} belongs to another live consumer: {why}; waiting for it, because it may be an "
                "earlier connection whose end the broker has not detected yet"
            )
            return logging.WARNING, "session_taken", text, {"session": session}
        case SessionForgotten(session, committed, why):
            text = (
                f"session {session!r}: the broker refuses the position {committed} of the position file: {why}; "
                "continuing after the acknowledged messages, which may repeat or skip messages if one of the two was "
                "restored from a copy"
            )
            return logging.WARNING, "session_forgotten", text, {"session": session}
        case SessionEnded(session, messages):
            text = f"End-of-Session: session {session!r} ended after {counted(messages, 'message')}; leaving"
            return logging.INFO, "session_ended", text, {"session": session}
        case _:
            raise AssertionError(effect)


def _call_text(group: str, call: CallFailed) -> str:
    name = (
        "a message without a publisher's stamp"
        if call.identity is None
        else f"message {_id_of(call.identity)}"
    )
    of_key = "" if call.key is None else f" of key {printable(repr(call.key))}"
    message = f"queue {call.queue}: {printable(name)}{of_key}"
    reason = printable(call.reason) if call.reason else "no reason given"
    match call.kind:
        case Failure.SLOW:
            return f"{message} has no verdict after {call.seconds:g} s, attempt {call.attempts}; its call still runs"
        case Failure.TIMED_OUT:
            return (
                f"{message} has no verdict within the call timeout of {call.seconds:g} s, attempt {call.attempts}; "
                "its call is aborted, and it is retried"
            )
        case Failure.REFUSED:
            return f"{message} is refused and becomes a dead letter, attempt {call.attempts}: {reason}"
        case Failure.RETRIED:
            return f"{message} failed and is retried, attempt {call.attempts}: {reason}"
        case Failure.POISONED:
            return (
                f"{message} failed {counted(call.attempts, 'time')} and is retried; its key waits, and the whole "
                f"queue waits once the window is full of that key; the last reason: {reason}"
            )
        case Failure.PARKED:
            return (
                f"{message} failed {counted(call.attempts, 'time')} and is parked; so is every later message of its "
                f"key, until `lbg park release {group}`; the last reason: {reason}"
            )


def _id_of(identity: MessageIdentity | None) -> str | None:
    return None if identity is None else "-".join(map(str, identity))


def _source_text(former: int | None, why: str, *, planned: bool) -> str:
    if former is None:
        return "no member was serving it"
    if planned:
        return f"from member {former}, planned: {why}"
    return f"from member {former}, {'which left' if why == LEAVE else 'without a handoff'}"


def _named(queues: Sequence[int]) -> str:
    return f"queue{'s' if len(queues) > 1 else ''} {' '.join(map(str, queues))}"
