"""Log lines of a member: one for each event of a queue or a session, and few for a state that lasts.

Their values are also fields of the record (`fields`), for logs that are read by machines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Generic

from lbg_core.group.members_protocol import Takeover
from lbg_core.group.sequences import MessageIdentity
from lbg_core.peers import printable
from lbg_sidecar.core.effects import (
    CallFailed,
    Effect,
    Failure,
    HandoffAbandoned,
    KeyParked,
    Moved,
    ParkedKeysUnread,
    Poisoned,
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


class CallLogger:
    """Logs calls of the application that failed, and messages that are poisoned: of each kind of failure one at once,
    and while such failures go on one at growing intervals, with their count."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._attempts = AttemptLog()
        self._loop = asyncio.get_running_loop()

    def failed(self, call: CallFailed) -> None:
        fields = {
            "key": call.key,
            "id": _id_of(call.identity),
            "attempt": call.attempts,
            "reason": call.reason,
        }
        self._log(logging.WARNING, call.kind.value, call.queue, _call_text(call), fields)

    def poisoned(self, effect: Poisoned) -> None:
        text = (
            f"{_message_text(effect.queue, effect.key, effect.identity)} failed {effect.attempts} times and is "
            "retried; its key waits, and the whole queue waits once the window is full of that key; "
            f"the last reason: {_reason_text(effect.reason)}"
        )
        fields = {"key": effect.key, "attempts": effect.attempts, "reason": effect.reason}
        self._log(logging.ERROR, "poisoned", effect.queue, text, fields)

    def parked(self, effect: KeyParked) -> None:
        text = (
            f"{_message_text(effect.queue, effect.key, effect.identity)} failed {effect.attempts} times and is parked; "
            "so is every later message of its key, until `lbg park release`; "
            f"the last reason: {_reason_text(effect.reason)}"
        )
        fields = {"key": effect.key, "attempts": effect.attempts, "reason": effect.reason}
        self._log(logging.ERROR, "key_parked", effect.queue, text, fields)

    def parked_keys_unread(self, effect: ParkedKeysUnread) -> None:
        queues = ", ".join(map(str, effect.queues))
        text = (
            f"the stream of parked keys has not answered for {effect.waited_s:.0f} s, so nothing of queues {queues} is "
            "delivered: are most of its nodes down?"
        )
        fields = {"waited_s": round(effect.waited_s, 1)}
        self._log(logging.WARNING, "parked_keys_unread", min(effect.queues, default=0), text, fields)

    def _log(self, level: int, event: str, queue: int, text: str, fields: Mapping[str, object]) -> None:
        line = self._attempts.failed(event, self._loop.time(), text=text)
        if line is not None:
            log.log(level, "%s: %s", self._name, line, extra=_fields(event, self._name, queue, fields))


def _call_text(call: CallFailed) -> str:
    message, reason = _message_text(call.queue, call.key, call.identity), _reason_text(call.reason)
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


def _message_text(queue: int, key: str | None, identity: MessageIdentity | None) -> str:
    name = "a message without a publisher's stamp" if identity is None else f"message {_id_of(identity)}"
    of_key = "" if key is None else f" of key {printable(repr(key))}"
    return f"queue {queue}: {printable(name)}{of_key}"


def _id_of(identity: MessageIdentity | None) -> str | None:
    return None if identity is None else "-".join(map(str, identity))


def _reason_text(reason: str) -> str:
    return printable(reason) if reason else "no reason given"


def log_paused(name: str, group: str, *, is_paused: bool) -> None:
    fields = {"event": "paused" if is_paused else "resumed", "member": name}
    text = "is paused: no new call starts until `lbg group resume`" if is_paused else "is resumed"
    log.info("%s: group %s %s", name, group, text, extra={"fields": fields})


def log_session(name: str, effect: Effect) -> None:
    match effect:
        case SessionInUse(session, why):
            log.warning(
                "%s: session %r belongs to another live consumer: %s; waiting for it, because it may be an "
                "earlier connection whose end the broker has not detected yet",
                *(name, session, why),
                extra=_session_fields("session_taken", name, session),
            )
        case SessionForgotten(session, committed, why):
            log.warning(
                "%s: session %r: the broker refuses the position %d of the position file: %s; continuing after the "
                "acknowledged messages, which may repeat or skip messages if one of the two was restored from a copy",
                *(name, session, committed, why),
                extra=_session_fields("session_forgotten", name, session),
            )
        case SessionEnded(session, messages):
            log.info(
                "%s: End-of-Session: session %r ended after %d messages; leaving",
                *(name, session, messages),
                extra=_session_fields("session_ended", name, session),
            )
        case _:
            pass


def _session_fields(event: str, name: str, session: str) -> dict[str, object]:
    return {"fields": {"event": event, "member": name, "session": session}}


def log_effect(name: str, me: int | None, effect: Effect) -> None:
    """`me` is this member's index, as far as it has one."""
    match effect:
        case Moved(queue, to, why, drain_s, close_s, forced):
            target = "released" if to is None else f"handed over to member {to}"
            times = f"drained in {drain_s * 1000:.1f} ms, closed in {close_s * 1000:.1f} ms"
            again = (
                f"; {forced} running calls were aborted, their messages are delivered again" if forced else ""
            )
            times_s = {"drain_seconds": drain_s, "close_seconds": close_s, "delivered_again": forced}
            log.info(
                "%s: queue %d %s (%s): %s%s",
                *(name, queue, target, why, times, again),
                extra=_fields("handed_over", name, queue, {"from": me, "to": to, "why": why, **times_s}),
            )
        case Recalled((), requeued, at_work):
            log.debug(
                "%s: the broker moves keys to a member with less load: returned %d messages that had not begun, "
                "finishing %d",
                *(name, requeued, at_work),
                extra=_of_many("given_back", name, (), {"given_back": requeued, "at_work": at_work}),
            )
        case Recalled(queues, requeued, at_work):
            log.info(
                "%s: the broker moves %s: returned %d messages that had not begun, finishing %d",
                *(name, _named(queues), requeued, at_work),
                extra=_of_many("given_back", name, queues, {"given_back": requeued, "at_work": at_work}),
            )
        case Reassigned(queues, at_work):
            log.warning(
                "%s: the broker moved %s, because the handoff time ended: %d messages with running calls are delivered "
                "again, and the verdicts have no effect",
                *(name, _named(queues), at_work),
                extra=_of_many("taken", name, queues, {"delivered_again": at_work}),
            )
        case HandoffAbandoned(queue, to, why, running, after_s, times, next_s):
            fields = {"from": me, "to": to, "why": why, "running": running, "after_seconds": after_s}
            fields |= {"times": times, "next_seconds": next_s}
            open_ = (
                f"{running} calls did not end"
                if running
                else "the broker has not confirmed or applied enough"
            )
            log.warning(
                "%s: queue %d stays (%s): %s within %.1f s; the handoff is postponed (%d in a row), "
                "the next waits up to %.1f s",
                *(name, queue, why, open_, after_s, times, next_s),
                extra=_fields("kept", name, queue, fields),
            )
        case Takeover(queue, former, why, planned, pause_s):
            pause = f", paused for {pause_s * 1000:.1f} ms" if pause_s is not None else ""
            fields = {"from": former, "to": me, "why": why, "pause_seconds": pause_s}
            log.info(
                "%s: serving queue %d (%s%s)",
                *(name, queue, _source_text(former, why, planned=planned), pause),
                extra=_fields("taken_over", name, queue, fields),
            )
        case Stalled(queue, ready, quiet_s):
            log.warning(
                "%s: queue %d is stalled: %d messages wait at the broker, and none was delivered in %.1f s; "
                "subscribing again",
                *(name, queue, ready, quiet_s),
                extra=_fields("stalled", name, queue, {"ready": ready, "quiet_seconds": quiet_s}),
            )
        case TimedOut(queue, timeout_s, expected_s):
            log.warning(
                "%s: queue %d: the broker closed the channel, because a message was unacknowledged for longer "
                "than its consumer timeout of %g s; this member uses %g s: set consumer_timeout_s to %g, or raise the "
                "broker's",
                *(name, queue, timeout_s, expected_s, timeout_s),
                extra=_fields("timed_out", name, queue, {"timeout_seconds": timeout_s}),
            )
        case Superseded(queue, by, cut_off):
            log.warning(
                "%s: queue %d is served by member %d, without a handoff by this one (was the broker "
                "partitioned?); attaching anew; %d messages with running calls here are processed there",
                *(name, queue, by, cut_off),
                extra=_fields("superseded", name, queue, {"by": by, "cut_off": cut_off}),
            )
        case StandingBy(queues, at_work):
            log.info(
                "%s: standing by: %d queues, %d members at work",
                *(name, queues, at_work),
                extra={
                    "fields": {"event": "standing_by", "member": name, "queues": queues, "at_work": at_work}
                },
            )
        case _:
            pass


def _source_text(former: int | None, why: str, *, planned: bool) -> str:
    if former is None:
        return "no member was serving it"
    if planned:
        return f"from member {former}, planned: {why}"
    return f"from member {former}, {'which left' if why == LEAVE else 'without a handoff'}"


def _fields(event: str, name: str, queue: int, more: Mapping[str, object]) -> dict[str, object]:
    return {"fields": {"event": event, "member": name, "queue": queue, **more}}


def _of_many(event: str, name: str, queues: Sequence[int], more: Mapping[str, object]) -> dict[str, object]:
    return {"fields": {"event": event, "member": name, "queues": list(queues), **more}}


def _named(queues: Sequence[int]) -> str:
    return f"queue{'s' if len(queues) > 1 else ''} {' '.join(map(str, queues))}"
