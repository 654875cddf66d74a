"""Streams: a log that every consumer reads for itself, from an offset of its choice.

A message's offset is its position. Consumers get what is on disk, and nobody takes anything out: an acknowledgement
only moves the consumer's credit. The latest messages are in memory for consumers that are up to date; the others read
pages of the store.

Retention deletes whole segments, the oldest first, and never the one with the latest message on disk. A segment has at
least what one commit appended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Self

from lbg_broker.core.arguments import ArgumentReader, StreamArguments
from lbg_broker.core.effects import Page, PageRequest, Row, SpoolChange, SpoolRecord
from lbg_broker.core.entities import Consumer, DispatchPolicy, Share
from lbg_broker.core.errors import ChannelRefusal, ConnectionRefusal
from lbg_broker.core.message import Message, Origin, with_entries
from lbg_broker.core.queue_types.queue_type import SingleSpoolType
from lbg_broker.core.spool import WINDOW_BYTES, WINDOW_MESSAGES, LetterBox, Spool, cost_of, share
from lbg_core.amqp import BasicProperties, ReplyCode

if TYPE_CHECKING:
    from lbg_broker.core.entities import Queue
    from lbg_broker.core.state import State


OFFSET: Final = "x-stream-offset"
"""Argument of basic.consume, and header of each delivery."""

PAGE_MESSAGES: Final = 1024
PAGE_BYTES: Final = 256 * 1024
"""Limits of a page, of which each consumer behind the messages in memory has one."""

SEGMENTS: Final = 16
"""Parts of a retention limit that a segment has: so much less than the limit may be kept."""

_HEADER: Final = OFFSET.encode()
_NAME: Final = bytes((len(_HEADER),)) + _HEADER + b"l"
_entry: Final = Struct(f">{len(_NAME)}sq").pack


def with_offset(header: bytes, offset: int) -> bytes:
    """A message's encoded properties with its offset among the headers, in place of a publisher's header of this
    name."""
    if _HEADER in header:
        properties = BasicProperties.decode(header)
        if properties.headers is not None:
            properties.headers = {name: value for name, value in properties.headers.items() if name != OFFSET}
        header = properties.encode()
    return with_entries(header, _entry(_NAME, offset))


@dataclass(slots=True)
class Segment:
    """Messages from offset `first` up to the next segment. `size_bytes` is that of bodies and properties. The times of
    its first and last message are in seconds since the epoch."""

    first: int
    messages: int = 0
    size_bytes: int = 0
    began_at: float = 0.0
    ended_at: float = 0.0


class Reader:
    """A consumer's place: the next offset that it gets. `rows`: what was read from the store for it."""

    __slots__ = ("position", "rows")

    def __init__(self, position: int) -> None:
        self.position = position
        self.rows: deque[Row] = deque()

    def skip(self) -> None:
        """Drops rows before its position."""
        rows = self.rows
        while rows and rows[0][0] < self.position:
            rows.popleft()


class StreamLog(Spool):
    """Messages of a stream in the store, and the latest of them in memory. `ready` counts all of them, and
    `ready_bytes` their bodies and properties. `outstanding_bytes` is what consumers have not acknowledged."""

    __slots__ = (
        "_clock",
        "_is_undated",
        "_is_unrecorded",
        "_reader",
        "_rules",
        "_sealed_to",
        "_stored_to",
        "_tail",
        "_tail_bytes",
        "_tail_first",
        "_waiting",
        "segments",
    )

    keeps_messages = True

    def __init__(self, spool: int, *, durable: bool, touched: list[Spool]) -> None:
        super().__init__(spool, durable=durable, touched=touched)
        self.segments: deque[Segment] = deque([Segment(0)])
        self._rules = StreamArguments()
        self._clock: Callable[[], float] = _no_time
        self._tail: dict[int, Message] = {}  # from _tail_first on, with all that is not on disk
        self._tail_bytes = 0
        self._tail_first = 0
        self._stored_to = self._sealed_to = 0
        self._is_unrecorded = True
        self._is_undated = False  # after a restart: the times of the open segment's messages are not known
        self._reader: Reader | None = None  # of the page that is being read
        self._waiting: dict[Reader, None] = {}  # for a page, in turn

    @classmethod
    def restored(cls, record: SpoolRecord, *, touched: list[Spool]) -> Self:
        log = cls(record.spool, durable=True, touched=touched)
        log.next_position = log.written = log._tail_first = record.next_position
        log._stored_to = log._sealed_to = record.next_position
        log.ready, log.ready_bytes = record.messages, record.bytes
        first = record.next_position if record.first is None else record.first
        log.segments = deque([Segment(first, record.messages, record.bytes)])
        log._is_unrecorded = False
        log._is_undated = True
        return log

    def configure(self, rules: StreamArguments, clock: Callable[[], float]) -> None:
        """Sets retention. `clock`: seconds since the epoch."""
        self._rules, self._clock = rules, clock

    def restore_segments(self, stored: Sequence[Sequence[float]]) -> None:
        """Divides the messages into the segments that were stored, the last of which is open. Where they do not fit
        the messages (after a crash on a full disk) all of these are one segment."""
        segments = [
            Segment(int(first), int(count), int(size), began, ended)
            for first, count, size, began, ended in stored
        ]
        *closed, last = segments or [self.segments[0]]
        last.messages = self.ready - sum([segment.messages for segment in closed])
        last.size_bytes = self.ready_bytes - sum([segment.size_bytes for segment in closed])
        if segments and last.first <= self.next_position and last.messages >= 0 and last.size_bytes >= 0:
            self.segments = deque(segments)

    @property
    def first(self) -> int:
        """Offset of the oldest message, or of the next one."""
        return self.segments[0].first

    @property
    def resident(self) -> int:
        """Messages in memory, without the pages of consumers."""
        return len(self._tail)

    def append(self, origin: Origin, header: bytes, body: bytes) -> None:
        """Appends a message."""
        position = self.next_position
        self.next_position = position + 1
        message = Message(position, origin, header, body, True)
        size = len(header) + len(body)
        self.ready += 1
        self.ready_bytes += size
        segment = self.segments[-1]
        segment.ended_at = self._clock()
        if not segment.messages:
            segment.began_at = segment.ended_at
        segment.messages += 1
        segment.size_bytes += size
        self._tail[position] = message
        self._tail_bytes += cost_of(message)
        self._unsealed.inserts.append(message)
        if not self._dirty:
            self._touch()

    def roll(self) -> bool:
        """Begins a new segment if the last one is large or old enough; True if so."""
        last, rules = self.segments[-1], self._rules
        if self._is_undated:
            self._is_undated = False
            last.ended_at = self._clock()
            last.began_at = last.began_at or last.ended_at
        if last.first >= self.written or not last.messages:
            return False
        limit = rules.max_length_bytes
        is_large = limit is not None and last.size_bytes * SEGMENTS >= limit
        if not is_large and self._clock() - last.began_at < rules.max_age_s / SEGMENTS:
            return False
        self.segments.append(Segment(self.next_position))
        return True

    def retain(self) -> bool:
        """Deletes the segments beyond the limits; True if there were any."""
        first = self.first
        while len(self.segments) > 1 and self.segments[1].first < self.written and self._is_over():
            gone = self.segments.popleft()
            self.ready -= gone.messages
            self.ready_bytes -= gone.size_bytes
        if first == self.first:
            return False
        self._unsealed.delete_range(first, self.first - 1)
        self._touch()
        while self._tail_first < self.first:
            self._drop_from_tail()
        return True

    def _is_over(self) -> bool:
        limit = self._rules.max_length_bytes
        if limit is not None and self.ready_bytes > limit:
            return True
        return self._clock() - self.segments[0].ended_at >= self._rules.max_age_s

    def read(self, reader: Reader, limit: int, below_bytes: int) -> list[Message]:
        """The next messages of a reader: up to `limit`, and none when those before it have `below_bytes` or more.
        Fewer than there are may come when the rest must be read first: the queue is due again after that."""
        messages: list[Message] = []
        while len(messages) < limit and below_bytes > 0:
            message = self._next(reader)
            if message is None:
                break
            reader.position = message.position + 1
            messages.append(message)
            below_bytes -= message.size
        self.outstanding_bytes += sum([message.size for message in messages])
        return messages

    def _next(self, reader: Reader) -> Message | None:
        reader.position = position = max(reader.position, self.first)
        if position >= self.written:
            return None
        latest = self._tail.get(position)
        if latest is not None:
            return _delivered(position, latest.origin, latest.header, latest.body)
        reader.skip()
        if not reader.rows:
            if reader is not self._reader:
                self._waiting[reader] = None
                self._request_next()
            return None
        position, wire, header, body = reader.rows[0]
        return _delivered(position, Origin.from_wire(wire), header, body)

    def _request_next(self) -> None:
        """Has the store read a page for the reader that waits for one longest; one page at a time."""
        if self._reader is None and self._waiting:
            self._reader = next(iter(self._waiting))
            del self._waiting[self._reader]
            first = max(self._reader.position, self.first)
            self._page = PageRequest(
                self.id, True, first, self.written, PAGE_MESSAGES, PAGE_BYTES, self._epoch
            )
            self._touch()

    def page_loaded(self, page: Page) -> None:
        """Gives its reader what was read."""
        reader, self._reader = self._reader, None
        if reader is None or page.request.epoch != self._epoch:
            return
        reader.rows = deque(page.rows)
        reader.position = max(reader.position, page.rows[0][0] if page.rows else page.end)
        self._request_next()

    def forget(self, reader: Reader) -> None:
        """A reader has gone: no page is read for it any more."""
        self._waiting.pop(reader, None)

    def settle(self, message: Message) -> None:
        """A delivery is acknowledged: the message stays."""
        self.outstanding_bytes -= message.size

    def requeue(self, messages: Iterable[Message]) -> None:
        """Deliveries end unacknowledged: the messages stay, and nobody gets them again."""
        self.outstanding_bytes -= sum([message.size for message in messages])

    def committed(self, mark: int, written: int) -> bool:
        """Records that all that was sealed is on disk; True if there is more to read."""
        has_more = written > self.written
        self.written = written
        self._stored_to = self._sealed_to
        while self._tail_first < written and (
            len(self._tail) > share(WINDOW_MESSAGES, attended=self.attended)
            or self._tail_bytes > share(WINDOW_BYTES, attended=self.attended)
        ):
            self._drop_from_tail()
        return has_more

    @property
    def in_memory_count(self) -> int:
        """Number of messages in memory that the store has, or will have, as well."""
        return len(self._tail)

    def _drop_from_tail(self) -> None:
        message = self._tail.pop(self._tail_first, None)
        if message is not None:
            self._tail_bytes -= cost_of(message)
        self._tail_first += 1

    def drop(self) -> None:
        """Forget everything: nothing of this line reaches the store from now on."""
        super().drop()
        self._tail.clear()
        self._waiting.clear()
        self._reader = None

    def restore(self, change: SpoolChange) -> None:
        """Restores what was handed over last and not written: it is handed over again."""
        super().restore(change)
        self._is_unrecorded = True

    def seal(
        self, *, final: bool = False, letters: LetterBox | None = None
    ) -> tuple[SpoolChange | None, PageRequest | None]:
        """Hands over the changes since the last time. Nothing is delivered before it is on disk, so the mark stays 0,
        and the record's next position follows the last message that the store has."""
        self._dirty = False
        inserts, deletes = self._unsealed.seal(letters)
        withheld = self._unsealed.withheld
        page, self._page = self._page, None
        self._sealed_to = max(self._stored_to, inserts[-1].position + 1 if inserts else 0)
        if not (inserts or deletes or self._is_unrecorded):
            return None, page
        self._is_unrecorded = False
        record = SpoolRecord(
            self.id,
            self._sealed_to,
            0,
            self.ready - len(withheld),
            self.ready_bytes - sum([message.size + len(message.header) for message in withheld]),
        )
        return SpoolChange(self.id, True, inserts, deletes, record), page


def _delivered(position: int, origin: Origin, header: bytes, body: bytes) -> Message:
    return Message(position, origin, with_offset(header, position), body, True)


def _no_time() -> float:
    return 0.0


class StreamDispatch(DispatchPolicy):
    """Consumers of a stream, each with its own place in the log."""

    supports_get = False

    def __init__(self, state: State, queue: Queue, log: StreamLog) -> None:
        super().__init__()
        self._state = state
        self._queue = queue
        self._log = log
        self._readers: dict[Consumer, Reader] = {}
        queue.append = self.append

    def append(self, origin: Origin, header: bytes, body: bytes) -> None:
        """Put a message at the end of the log."""
        if self._log.roll():
            self._state.redefine(self._queue)
        self._log.append(origin, header, body)

    def admit(self, consumer: Consumer, arguments: ArgumentReader) -> None:
        where = self._queue.where
        if not consumer.prefetch:
            raise ChannelRefusal(
                ReplyCode.PRECONDITION_FAILED, f"consumer prefetch count is not set for '{where}'"
            )
        if consumer.no_ack:
            raise ConnectionRefusal(
                ReplyCode.NOT_IMPLEMENTED,
                f"automatic acknowledgement not supported by stream queues {where}",
            )
        offset = arguments.value(OFFSET)
        if offset not in (None, "first", "last", "next") and (
            isinstance(offset, bool) or not isinstance(offset, int)
        ):
            raise arguments.unsupported(OFFSET, "give first, last, next or an offset, not a time")

    def add(self, consumer: Consumer) -> None:
        super().add(consumer)
        self._readers[consumer] = Reader(self._start(consumer.arguments.get(OFFSET)))

    def _start(self, offset: object) -> int:
        """The first offset to deliver. `last` is the latest message on disk."""
        match offset:
            case int():
                return max(offset, 0)
            case "first":
                return 0
            case "last":
                return max(self._log.written - 1, 0)
        return self._log.written

    def remove(self, consumer: Consumer) -> None:
        super().remove(consumer)
        self._log.forget(self._readers.pop(consumer))

    def dispatch(self) -> Iterator[Share]:
        log = self._log
        if log.retain():
            self._state.redefine(self._queue)
        for consumer, reader in self._readers.items():
            while credit := consumer.credit():
                messages = log.read(reader, credit, consumer.credit_bytes())
                if not messages:
                    break
                yield log, consumer, messages, 0

    def stored_state(self) -> Mapping[str, Any]:
        return {"segments": [astuple(segment) for segment in self._log.segments]}


class StreamType(SingleSpoolType):
    """RabbitMQ's streams, as a client of AMQP 0-9-1 sees them."""

    line = StreamLog

    def policy(self, state: State, queue: Queue, stored: Mapping[str, Any]) -> DispatchPolicy:
        log, rules = queue.spool, queue.rules.kind
        assert isinstance(log, StreamLog)
        assert isinstance(rules, StreamArguments)
        log.configure(rules, lambda: state.now)
        log.restore_segments(stored.get("segments", ()))
        return StreamDispatch(state, queue, log)
