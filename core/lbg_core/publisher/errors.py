"""Errors of publishing.

    PublishingError
    ├── Unroutable        the broker found no queue for a message and returned it
    ├── GroupGone         the group is not there any more, or its attributes changed under the publisher
    ├── GroupClosed       the group takes no more messages, for good
    ├── BrokerRefused     the broker closed the channel for a reason that does not pass (permissions)
    │   └── SizeRefused   … because a message is larger than it takes
    ├── PublisherClosed   publish() after close()
    ├── InputError        the input cannot be read
    │   ├── BadRow        one row of it is not a message (`--bad-rows skip` goes on past it)
    │   └── InputChanged  it is not the input that the state file speaks of
    └── StateError        the state file cannot be used: not one, damaged, in use, or of something else

    SpecError
    └── MessageTooLarge   a message is larger than the broker takes, and was not accepted

None of them is retryable: what passes by itself (a lost connection, a full queue) is waited for, not raised.
"""

from __future__ import annotations

from lbg_core.group import SpecError


class PublishingError(Exception):
    """Base of every error of this package; `str()` is one line: the error, its place and the action to take."""


class Unroutable(PublishingError):
    """The broker returned a message (AMQP 0-9-1, basic.return): no binding takes its routing key."""

    def __init__(self, group: str, routing_key: str, reply: str) -> None:
        super().__init__(
            f"no queue takes routing key {routing_key!r} ({reply}): a binding of group {group!r} is missing; "
            f"`lbg group create {group} …` with the group's own attributes repairs it"
        )
        self.routing_key = routing_key


class GroupGone(PublishingError):
    """The group is not there any more, or its attributes changed under the publisher: sequences cannot go on."""


class GroupClosed(PublishingError):
    """The group takes no more messages, for good."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"group {group!r} is closed and takes no more messages: publish to another group, or delete it when its "
            "sessions are done and make it anew"
        )


class BrokerRefused(PublishingError):
    """The broker closed the channel (AMQP 0-9-1, channel.close) for what does not pass: permissions, a size limit."""


class SizeRefused(BrokerRefused):
    """The broker was sent a message larger than it takes, and had not announced its limit (RabbitMQ's
    `max_message_size`)."""

    def __init__(self, group: str, size_bytes: int, limit_bytes: int, reply: str) -> None:
        super().__init__(
            f"the broker takes no message of {size_bytes} bytes for group {group!r}: its max_message_size is "
            f"{limit_bytes} ({reply})"
        )
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class MessageTooLarge(SpecError):
    """A message is larger than the broker takes; it was not accepted, and the publisher goes on."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            "message size", size_bytes, f"must be at most {limit_bytes}, the broker's max_message_size"
        )
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes

    def __reduce__(self) -> tuple[type[MessageTooLarge], tuple[int, int]]:  # type: ignore[override]  # narrower
        return type(self), (self.size_bytes, self.limit_bytes)


class PublisherClosed(PublishingError):
    """A publisher was used before it was open, or after `close`."""


class InputError(PublishingError):
    """The input cannot be read: no such file, a compression or a format that is none."""


class BadRow(InputError):
    """`row` counts the rows of the input from 1, a header not included; `line` is where the row ends in the
    text.
    """

    def __init__(self, source: str, row: int, why: str, *, line: int | None = None) -> None:
        where = f"row {row}" if line is None or line == row else f"row {row} (line {line})"
        super().__init__(f"{source}, {where}: {why}")
        self.source = source
        self.row = row


class InputChanged(InputError):
    """The input differs, where it was published, from the one that the state file speaks of, or is read otherwise."""


class StateError(PublishingError):
    """The state file cannot be used: not one, damaged, in use, of another group, or without room on its disk."""
