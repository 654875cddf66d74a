"""A broker reduced to what ordered publishing depends on: queues with a limit, answers, and connections that break.

It is deterministic: a history is a string of bytes, and every choice takes one of them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from lbg_core.publisher.stamper import StampedMessage


class Choices:
    """A finite source of choices; when it is used up, every choice is the first."""

    def __init__(self, script: bytes) -> None:
        self._script = script
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._script)

    def below(self, limit: int) -> int:
        value = self._script[self._at] if self else 0
        self._at += 1
        return value % limit


@dataclass
class ModelChannel:
    """Frames on their way to the broker (None is confirm.select), and its pending answers."""

    inbound: deque[tuple[int, int, tuple[int, int, bytes, str | None], str] | None] = field(
        default_factory=deque
    )
    answers: dict[int, bool] = field(default_factory=dict)
    closed_to: set[int] = field(default_factory=set)


class ModelBroker:
    """`fenced` is ordered refusal. `limit` is how many messages a queue holds before it refuses."""

    def __init__(self, queue_count: int, *, limit: int, fenced: bool) -> None:
        self.limit = limit
        self.fenced = fenced
        self.logs: list[list[tuple[int, int, bytes, str | None]]] = [[] for _ in range(queue_count)]
        self.publishers: list[list[str]] = [[] for _ in range(queue_count)]
        """Of each message in `logs`."""
        self.consumed = [0] * queue_count
        self.channel: ModelChannel | None = None
        self.lost: list[ModelChannel] = []

    def connect(self) -> None:
        self.channel = ModelChannel()

    def lose(self) -> None:
        """The client sees the connection gone; what it wrote may still arrive, the answers never."""
        assert self.channel is not None
        self.lost.append(self.channel)
        self.channel = None

    def write(
        self, first_tag: int, sends: list[StampedMessage], *, barrier: bool, publisher: str = ""
    ) -> None:
        assert self.channel is not None
        if barrier:
            self.channel.inbound.append(None)
        for tag, message in enumerate(sends, first_tag):
            what = (message.hash, message.seq, message.body, message.key)
            self.channel.inbound.append((tag, message.queue, what, publisher))

    def process(self, channel: ModelChannel) -> None:
        if not channel.inbound:
            return
        command = channel.inbound.popleft()
        if command is None:
            channel.closed_to.clear()
            return
        tag, queue, what, publisher = command
        is_full = len(self.logs[queue]) - self.consumed[queue] >= self.limit
        ok = not is_full and queue not in channel.closed_to
        if ok:
            self.logs[queue].append(what)
            self.publishers[queue].append(publisher)
        elif self.fenced:
            channel.closed_to.add(queue)
        channel.answers[tag] = ok

    def consume(self, queue: int) -> None:
        self.consumed[queue] = min(self.consumed[queue] + 1, len(self.logs[queue]))

    def answer(self, choices: Choices) -> tuple[int, bool, bool] | None:
        """Some answer that the broker may give now: tag, multiple, ok. Answers may overtake each other."""
        channel = self.channel
        if channel is None or not channel.answers:
            return None
        tags = sorted(channel.answers)
        tag = tags[choices.below(len(tags))]
        ok = channel.answers[tag]
        below = [each for each in tags if each <= tag]
        unprocessed = [command[0] for command in channel.inbound if command is not None]
        may_be_multiple = all(channel.answers[each] == ok for each in below) and not any(
            each < tag for each in unprocessed
        )
        if may_be_multiple and choices.below(2):
            for each in below:
                del channel.answers[each]
            return tag, True, ok
        del channel.answers[tag]
        return tag, False, ok
