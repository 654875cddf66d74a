"""Dead-lettering of dropped and rejected messages with `x-death`, and expiry.

A message expires at the head of its queue: deadlines of one queue rise with the positions, so no message behind the
head is due before it. A queue expires without a consumer, a declaration or a basic.get for so long. A
queue has one alarm at most, for whichever comes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal

from lbg_broker.core.entities import Queue
from lbg_broker.core.message import Origin, Place
from lbg_broker.core.state import State
from lbg_core.amqp import INTEGER_MAX, BasicProperties, FieldValue

LETTER_COST_BYTES: Final = 512
"""Bytes of a dead letter beside its body, about: headers, and where it was."""

Reason = Literal["rejected", "maxlen", "expired"]


def dead_letter(
    state: State, queue: Queue, origin: Origin, header: bytes, body: bytes, *, reason: Reason
) -> None:
    """Publish a message that leaves the queue to its dead-letter exchange, if it has one, and drop what is then over a
    limit."""
    for target in _publish(state, queue, origin, header, body, reason=reason):
        enforce_limit(state, target)


def _publish(
    state: State, queue: Queue, origin: Origin, header: bytes, body: bytes, *, reason: Reason
) -> list[Queue]:
    """Publish a dead letter; returns the queues with a limit that have it.

    Without a routing key of the queue's own it goes by all that it was published with, those of CC and BCC too. It is
    appended where it goes in the same batch that deletes it here. As with RabbitMQ's `at-most-once`
    there is no second attempt: a full queue that refuses loses it.
    """
    if queue.rules.dead_letter_exchange is None:
        return []
    vhost = queue.vhost
    exchange = vhost.exchanges.get(queue.rules.dead_letter_exchange)
    if exchange is None:
        return []
    properties = BasicProperties.decode(header)
    headers = dict(properties.headers or {})
    copies = _copies_in(headers)
    key = queue.rules.dead_letter_routing_key
    if key is None:
        letter = Origin.of(exchange.name, origin.routing_key, origin.hidden, place=Place.MOVED)
        keys = [origin.routing_key, *copies, *origin.hidden]
    else:
        letter = Origin.of(exchange.name, key, place=Place.MOVED)
        keys = [key]
        headers.pop("CC", None)  # one key takes the place of all
    routed = dict.fromkeys(target for key in keys for target in vhost.route(exchange, key).queues)
    deaths = _deaths_of(headers)
    targets = [target for target in routed if not _circles(target, deaths, queue, reason)]
    if not targets:
        return []
    state.counters.dead_lettered += 1
    _bury(headers, deaths, queue=queue, origin=origin, copies=copies, reason=reason, now=state.now)
    properties.headers = headers
    properties.expiration = None
    new_header = properties.encode()
    limited: list[Queue] = []
    for target in targets:
        if target.shut or (target.rules.overflow != "drop-head" and target.is_full_for(len(body))):
            continue
        target.append(letter, new_header, body)
        state.letters_bytes += len(body) + LETTER_COST_BYTES
        state.make_due(target)
        if target.limited:
            limited.append(target)
    return limited


def enforce_limit(state: State, queue: Queue) -> None:
    """Drop from the head of a queue that is over its limit, if that is its way, and of those that its letters put over
    theirs: any number, one after another."""
    queues = deque([queue])
    while queues:
        queue = queues.popleft()
        if not queue.limited or queue.rules.overflow != "drop-head" or not queue.is_over():
            continue
        if queue.policy.consumers:
            state.dispatch()  # what a consumer can take is not dropped
        while queue.is_over():
            message = queue.spool.drop_first()
            if message is None:
                state.make_due(queue)  # the head is being read; its page brings us back here
                break
            state.counters.dropped += 1
            queues += _publish(state, queue, message.origin, message.header, message.body, reason="maxlen")


def _copies_in(headers: Mapping[str, FieldValue]) -> list[str]:
    """The routing keys of the CC header («Sender-Selected Distribution»), which was checked when it was published."""
    keys = headers.get("CC")
    return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else []


def _deaths_of(headers: Mapping[str, FieldValue]) -> list[dict[str, FieldValue]]:
    deaths = headers.get("x-death")
    if not isinstance(deaths, list):
        return []
    return [dict(death) for death in deaths if isinstance(death, Mapping)]


def _circles(target: Queue, deaths: list[dict[str, FieldValue]], source: Queue, reason: Reason) -> bool:
    """True if a message would come back to a queue without any consumer having rejected it on its way."""
    if reason == "rejected":
        return False
    if target is source:
        return True
    for death in deaths:  # the newest first
        if death.get("reason") == "rejected":
            return False
        if death.get("queue") == target.name:
            return True
    return False


def _bury(
    headers: dict[str, FieldValue],
    deaths: list[dict[str, FieldValue]],
    *,
    queue: Queue,
    origin: Origin,
    copies: list[str],
    reason: Reason,
    now: float,
) -> None:
    """Note a death: the newest (queue, reason) pair stands first, each pair once with its count."""
    for index, death in enumerate(deaths):
        if death.get("queue") == queue.name and death.get("reason") == reason:
            count = death.get("count")
            # A client may write the history of its message itself.
            death["count"] = min(count if isinstance(count, int) else 0, INTEGER_MAX - 1) + 1
            deaths.insert(0, deaths.pop(index))
            break
    else:
        deaths.insert(
            0,
            {
                "count": 1,
                "reason": reason,
                "queue": queue.name,
                "time": datetime.fromtimestamp(int(now), UTC),
                "exchange": origin.exchange,
                "routing-keys": [origin.routing_key, *copies],
            },
        )
    headers["x-death"] = deaths
    headers.setdefault("x-first-death-reason", reason)
    headers.setdefault("x-first-death-queue", queue.name)
    headers.setdefault("x-first-death-exchange", origin.exchange)


LETTERS_EVERY_S: Final = 0.02


class TimeToLive:
    """Gives each message of a queue its deadline when it is appended."""

    __slots__ = ("_expiring", "_origin", "_queue", "_state", "_ttl_s")

    def __init__(self, state: State, queue: Queue, ttl_s: float) -> None:
        self._state = state
        self._queue = queue
        self._ttl_s = ttl_s
        self._origin: Origin | None = None
        self._expiring: Origin | None = None  # of the message before: those of one turn share it

    def append(self, origin: Origin, header: bytes, body: bytes) -> None:
        """Put a message at the end of the queue."""
        deadline = self._state.now + self._ttl_s
        expiring = self._expiring
        if expiring is None or origin is not self._origin or expiring.deadline != deadline:
            self._origin, self._expiring = origin, origin.expiring(deadline)
            expiring = self._expiring
        self._queue.spool.append(expiring, header, body)
        _wake_at(self._state, self._queue, deadline)


def expire_messages(state: State, queue: Queue) -> None:
    """Drop from the head of a queue what has waited too long, and dead-letter it."""
    if queue.rules.message_ttl_s is None:
        return
    spool = queue.spool
    while spool.ready:
        deadline = spool.first_deadline
        if deadline is not None and deadline > state.now:
            _wake_at(state, queue, deadline)
            return
        if queue.rules.dead_letter_exchange is not None and (
            state.letters_wait or state.letters_afforded <= 0
        ):
            _wake_at(state, queue, state.now + LETTERS_EVERY_S)  # the open batch has no room for more
            return
        message = spool.drop_first()
        if message is None:
            return  # the head is being read; its page brings us back here
        state.counters.expired += 1
        dead_letter(state, queue, message.origin, message.header, message.body, reason="expired")


def renew_lease(state: State, queue: Queue) -> None:
    """A queue was used: the time after which it expires begins again."""
    if queue.rules.expires_s is not None:
        queue.used_at = state.now
        _wake_at(state, queue, state.now + queue.rules.expires_s)


def lease_ended(state: State, queue: Queue) -> bool:
    """True if a queue was not used for so long that it expires. With a consumer the time stands still until the last
    one goes, which renews it."""
    expires_s = queue.rules.expires_s
    if expires_s is None or queue.policy.consumers:
        return False
    if queue.used_at is None:  # as RabbitMQ's does, the time begins again when the broker starts
        queue.used_at = state.now
    at = queue.used_at + expires_s
    if at > state.now:
        _wake_at(state, queue, at)
        return False
    return True


def _wake_at(state: State, queue: Queue, at: float) -> None:
    if at < queue.alarm_at:
        queue.alarm_at = at
        state.wake_at(queue, at)
