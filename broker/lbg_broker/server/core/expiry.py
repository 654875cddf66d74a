"""Expiry of messages (x-message-ttl) and of unused queues (x-expires), with RabbitMQ's meaning.

A message expires at the head of its queue: deadlines of one queue rise with the positions, so no message behind the
head is due before it. A queue expires when it had no consumer and nobody declared it or fetched from it for so long. A
queue has one alarm at most, for whichever comes first.
"""

from typing import TYPE_CHECKING, Final

from lbg_broker.server.core.dead_lettering import dead_letter
from lbg_broker.server.core.message import Origin

if TYPE_CHECKING:
    from lbg_broker.server.core.queue import Queue
    from lbg_broker.server.core.state import State

LETTERS_EVERY_S: Final = 0.02

__all__ = ["TimeToLive", "expire_messages", "lease_ended", "renew_lease"]


class TimeToLive:
    """Gives each message of a queue its deadline when it is appended."""

    __slots__ = ("_expiring", "_origin", "_queue", "_state", "_ttl_s")

    def __init__(self, state: "State", queue: "Queue", ttl_s: float) -> None:
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


def expire_messages(state: "State", queue: "Queue") -> None:
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


def renew_lease(state: "State", queue: "Queue") -> None:
    """A queue was used: the time after which it expires begins again."""
    if queue.rules.expires_s is not None:
        queue.used_at = state.now
        _wake_at(state, queue, state.now + queue.rules.expires_s)


def lease_ended(state: "State", queue: "Queue") -> bool:
    """Whether nobody has used a queue for so long that it goes. With a consumer the time stands still until the last
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


def _wake_at(state: "State", queue: "Queue", at: float) -> None:
    if at < queue.alarm_at:
        queue.alarm_at = at
        state.wake_at(queue, at)
