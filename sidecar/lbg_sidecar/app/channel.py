"""Protocol between a member and its application, and the application's answers in JSON.

One entry for each publisher and hash, with runs of sequence numbers, both ends included. An application that commits
positions with its own writes reports them when it connects; every channel accepts the same form. In mode Sessions there
is one number: ``{"committed": 345}``, or ``{"committed": [345, "C0WvEMT0RmXWoLuPB5mK8A"]}`` with the epoch of that
message.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeGuard

from lbg_core.group.keys import is_unicode
from lbg_core.group.sequences import StreamRuns
from lbg_sidecar.core.limits import CallLimit
from lbg_sidecar.message import (
    ACK,
    AFTER_MAX_S,
    VERDICT_RULE,
    Kind,
    Message,
    Verdict,
    checked_seconds,
    is_of_group,
    kind_of,
)


class Committed(NamedTuple):
    """Committed position of a session. `epoch`: of the message with that number, None where none is stored."""

    sequence: int
    epoch: str | None = None


def parse_reported(value: object) -> tuple[tuple[StreamRuns, ...], Committed | None]:
    """Processed streams and the committed position of a session: from a list, or from an object that holds one or both.
    Raises ValueError."""
    if not isinstance(value, dict):
        return parse_processed(value), None
    if not value.keys() & {"processed", "committed"}:
        raise ValueError('neither "processed" nor "committed" is in the answer of the application')
    committed = value.get("committed")
    return parse_processed(value.get("processed", [])), None if committed is None else parse_committed(
        committed
    )


def parse_committed(value: object) -> Committed:
    """A number, or a pair of it and its epoch. Raises ValueError."""
    match value:
        case [number, str() | None as epoch]:
            pass
        case number:
            epoch = None
    if not _is_number(number) or (epoch is not None and not is_unicode(epoch)):
        raise ValueError(
            f"the committed position of a session is {value!r:.80}, not a number from 0, or it and its epoch"
        )
    return Committed(number, epoch)


def parse_processed(value: object) -> tuple[StreamRuns, ...]:
    """Raises ValueError, which names the wrong entry and the rule."""
    if not isinstance(value, list):
        raise ValueError("what was processed is not a list")
    streams: list[StreamRuns] = []
    for number, entry in enumerate(value):
        match entry:
            case [str(publisher), hash_, [*runs]] if _is_number(hash_):
                streams.append((publisher, hash_, tuple(_run(number, run) for run in runs)))
            case _:
                raise ValueError(f"entry {number} of what was processed is not [publisher, hash, runs]")
    return tuple(streams)


def _run(number: int, run: object) -> tuple[int, int]:
    if not isinstance(run, list) or len(run) != 2 or not all(map(_is_number, run)) or run[0] > run[1]:
        raise ValueError(f"entry {number} of what was processed has a run that is not [first, last]: {run!r}")
    return run[0], run[1]


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def read_object(text: str | bytes) -> dict[str, Any]:
    """Raises ValueError unless it is one JSON object."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return fields


def read_verdict(fields: Mapping[str, Any]) -> Verdict:
    """From `verdict`, `reason`, `after_s` and `scope`; raises ValueError with what is wrong."""
    kind = kind_of(fields.get("verdict"))
    reason = str(fields.get("reason") or "")
    match kind:
        case Kind.ACK:
            return ACK
        case Kind.DROP:
            return Verdict(kind, reason)
        case Kind.RETRY:
            after_s = _after_s(fields.get("after_s"))
            return Verdict(kind, reason, after_s, is_of_group=is_of_group(fields.get("scope")))
    raise ValueError(f'"verdict" {VERDICT_RULE}')


class Extension(NamedTuple):
    """Request of an application that still works on a call (`Message.extend`)."""

    seconds: float
    progress: str | None = None


def read_extension(fields: Mapping[str, Any]) -> Extension:
    """From `seconds` and `progress`; raises ValueError with what is wrong."""
    progress = fields.get("progress")
    if progress is not None and not isinstance(progress, str):
        raise ValueError('"progress" must be text')
    return Extension(checked_seconds(fields.get("seconds")), progress)


def parse_answer(line: bytes) -> tuple[str, Verdict | Extension]:
    """The id, and the verdict or the extension, in a command's line; raises ValueError with the reason."""
    fields = read_object(line)
    name = fields.get("id")
    if not isinstance(name, str):
        raise ValueError('no object with an "id"')
    return name, read_extension(fields) if "seconds" in fields else read_verdict(fields)


def parse_first_line(line: bytes) -> tuple[StreamRuns, ...] | None:
    """A command's positions; None if it does not begin with them. Raises ValueError if they cannot be read."""
    fields = read_object(line)
    return parse_processed(fields["processed"]) if "processed" in fields else None


def _after_s(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= AFTER_MAX_S:
        raise ValueError(f'"after_s" must be a number of seconds from 0 to {AFTER_MAX_S}')
    return value


CONCURRENCY = 16
"""Messages at the application at the same time, where neither the user nor the channel sets another number."""


class Calls(Protocol):
    """Calls of a member for a channel, and the reports of their ends."""

    def take(self) -> Message | None:
        """The next call to make, or None when there is none now; the channel is woken when there may be again."""

    def end(self, message: Message, verdict: Verdict) -> None:
        """Reports the end of a call: exactly once for every call taken, with INTERRUPTED if it was aborted and has no
        verdict, and only when nothing of the call runs any more."""

    def more(self) -> bool:
        """True if `take` would probably return another call."""

    def ready(self, is_ready: bool, why: str = "") -> None:
        """Reports whether the application can take messages. It can from the start, unless the channel reports
        otherwise in `start`: then nothing is consumed until it can. While it cannot, other members have the member's
        queues, and the reason may be reported again."""

    def processed(self, streams: Iterable[StreamRuns]) -> None:
        """Reports what the application has processed by its own record: it is not delivered again."""

    @property
    def session(self) -> str | None:
        """The name of the member's session; None in other modes than Sessions."""

    def committed(self, sequence: int, epoch: str | None = None) -> None:
        """Reports the session position that the application committed with its own writes; 0: it has begun. `epoch`: of
        the message with that number, None if the application does not store it. From then on the position is its own.
        If reported before the application counts as ready, the broker continues after it."""


class AppChannel(ABC):
    """One way to reach the application: the base class of every channel. All methods are called in the member's event
    loop."""

    concurrency: int = CONCURRENCY
    """Number of messages at a time that the channel makes use of, where its user sets no number: batches can only fill
    up when there is room for them."""
    limit: Callable[[int, float], CallLimit] | None = None
    """Factory of a limit, from the concurrency and the handoff time in seconds, where a call may wait inside the
    application, behind others and unseen: a channel to another process has one. None: a function in this process is
    called when its call is taken."""
    runs_in_process: bool = False
    """True if the application's code runs in the member's own process, and can end it."""

    @abstractmethod
    async def start(self, calls: Calls) -> None:
        """Get ready. Raises AppError if the application can never be reached as it is configured."""

    @abstractmethod
    def wake(self) -> None:
        """Notifies that there may be calls to take. Called often; must be cheap and must not block."""

    @abstractmethod
    def abort(self, messages: Collection[Message]) -> None:
        """Stop these calls now: their messages may be with another member already."""

    def withdraw(self, messages: Collection[Message], *, reassigned: bool) -> None:
        """Withdraws messages that the broker requests for another member, or, `reassigned`, has delivered to it.

        A channel that lets calls wait before they reach the application ends those as `INTERRUPTED` at once, and of
        calls that are `reassigned` aborts what it can without harm to others. In any other channel every call has
        begun: it is aborted if it is `reassigned`, and else ends with its verdict."""
        if reassigned:
            self.abort(messages)

    def request_position(self) -> bool:
        """Requests the position up to which the application has committed its session: the channel is not ready until
        the report. False if the position cannot be reported through this channel."""
        return False

    @abstractmethod
    async def stop(self, grace_s: float) -> None:
        """Takes no more calls, and ends within the grace period, whatever the application does."""

    def describe(self) -> dict[str, object]:
        """State of the channel, for a view."""
        return {}


REQUESTED_AGAIN = "the session's position is requested again"
