"""The seam between a member and its application."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from ..consuming.concurrency_limit import CallLimit
from ..consuming.positions import StreamRuns
from ..message import Message
from ..verdict import Verdict

CONCURRENCY = 16
"""Messages at the application at the same time, where neither the user nor the channel says another number."""


class Calls(Protocol):
    """What the member offers to a channel: calls to take, and somebody to tell how they ended."""

    def take(self) -> Message | None:
        """The next call to make, or None when there is none now; the channel is woken when there may be again."""

    def end(self, message: Message, verdict: Verdict) -> None:
        """A call has ended. Must be called exactly once for every call taken, with INTERRUPTED if it was aborted
        and gave no verdict, and only when nothing of the call runs any more."""

    def more(self) -> bool:
        """Whether `take` would probably give another call."""

    def ready(self, is_ready: bool, why: str = "") -> None:
        """Whether the application can take messages. It can from the start, unless the channel says otherwise in
        `start`: then nothing is consumed until it can. While it cannot, the member's queues are with others."""

    def processed(self, streams: Iterable[StreamRuns]) -> None:
        """What the application itself knows to have processed: it is not given again."""

    @property
    def session(self) -> str | None:
        """The name of the member's session; None in other modes than Sessions."""

    def committed(self, sequence: int, epoch: str | None = None) -> None:
        """How far the application has committed its session itself, with its own writes; 0: it has begun. `epoch`: of
        the message with that number, None if the application does not keep it. From then on the position is its own.
        Said before the application counts as ready, the broker goes on after it."""


class AppChannel(Protocol):
    """One way to reach the application. All methods are called in the member's event loop.

    A channel may have attributes `concurrency` and `limit`, see `concurrency_of` and `limit_of`, and methods
    `ask_again` and `withdraw`, see the functions of these names.
    """

    async def start(self, calls: Calls) -> None:
        """Get ready. Raises AppError if the application can never be reached as it is configured."""

    def wake(self) -> None:
        """There may be calls to take. Called often; must be cheap and must not block."""

    def abort(self, messages: Collection[Message]) -> None:
        """Stop these calls now: their messages may be with another member already."""

    async def stop(self, grace_s: float) -> None:
        """Nothing is taken any more; end within the grace period, whatever the application does."""

    def describe(self) -> dict[str, object]:
        """What a view should show of it."""


def concurrency_of(channel: AppChannel) -> int:
    """How many messages at a time the channel makes use of, where its user sets no number: batches can only fill up
    when there is room for them."""
    return getattr(channel, "concurrency", CONCURRENCY)


def limit_of(channel: AppChannel) -> Callable[[int, float], CallLimit] | None:
    """What makes a limit, of the concurrency and the handoff time in seconds, where a call may wait inside the
    application, behind others and unseen: a channel to another process has one. None: a function in this process is
    called when its call is taken."""
    return getattr(channel, "limit", None)


def withdraw(channel: AppChannel, messages: Collection[Message], *, taken: bool) -> None:
    """The broker wants these calls' messages for another member (`taken`: has given them to it). A channel that lets
    taken calls wait before they reach the application has a method of this name: it ends those as `INTERRUPTED` at
    once, and of calls that are `taken` stops what it can without harm to others. In any other channel a call that
    was taken has begun: it ends as it will, and is aborted when it is `taken`."""
    withdrawing = getattr(channel, "withdraw", None)
    if withdrawing is not None:
        withdrawing(messages, taken=taken)
    elif taken:
        channel.abort(messages)


def ask_again(channel: AppChannel) -> bool:
    """Let the application say anew how far it has committed its session. A channel through which it can say so has a
    method of this name: it is not ready from then on until it has said it. False for any other channel."""
    asking = getattr(channel, "ask_again", None)
    if asking is None:
        return False
    asking()
    return True
