"""Record of a group: the one message of the queue `lbg.G.config`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lbg_broker.admin.errors import GroupNotFound, GroupUnfinished, RecordUnavailable, RecordUnreadable
from lbg_broker.admin.ownership import Record
from lbg_broker.client import NotFound, QueueDown
from lbg_broker.group import HEADER_OWNER, GroupSpec, Names, SpecError

if TYPE_CHECKING:
    from lbg_broker.client import Channel

EMPTY_READS = 40
"""Another reader holds the record between its get and its requeue, for about a round trip. Forty attempts outlast any
such reader; a queue that is still empty has lost its record."""
READ_INTERVAL_S = 0.05
ANSWER_S = 10.0
"""A quorum queue without a majority does not answer at all. An election takes a second or two."""


async def read_group(channel: Channel, group: str) -> GroupSpec:
    """The attributes of `group` as its record states them.

    Raises GroupNotFound (the broker has then closed `channel`: AMQP 0-9-1, queue.get on a missing queue is a
    channel error), its kind GroupUnfinished (`channel` is open), RecordUnavailable when its nodes are down,
    RecordUnreadable when the queue stays empty or holds no valid record, and ClientError.
    """
    record = await read_record(channel, group)
    if record is None:
        raise RecordUnreadable(group, "its queue is empty")
    return spec_in(record.text, group)


def spec_in(text: str, group: str) -> GroupSpec:
    """The attributes that a record's text states. Raises RecordUnreadable, GroupUnfinished."""
    if GroupSpec.from_unfinished(text, name=group) is not None:
        raise GroupUnfinished(group)
    try:
        return GroupSpec.from_record(text, name=group)
    except SpecError as error:
        raise RecordUnreadable(group, str(error)) from error


async def read_record(channel: Channel, group: str, *, reads: int = EMPTY_READS) -> Record | None:
    """The record with its owner; None when the queue is there and stays empty.

    Raises GroupNotFound, RecordUnavailable, ClientError.
    """
    name = Names(group).config
    for attempt in range(reads):
        if attempt:
            await asyncio.sleep(READ_INTERVAL_S)
        try:
            async with asyncio.timeout(ANSWER_S):
                delivery = await channel.basic_get(name)
        except NotFound as error:
            raise GroupNotFound(group) from error
        except QueueDown as error:
            raise RecordUnavailable(group, error.reply_text) from error
        except TimeoutError:
            raise RecordUnavailable(group, f"no answer in {ANSWER_S:g} s") from None
        if delivery is not None:
            channel.nack(delivery.delivery_tag, requeue=True)
            owner = delivery.headers.get(HEADER_OWNER)
            return Record(
                bytes(delivery.body).decode("utf-8", "replace"), owner if isinstance(owner, str) else ""
            )
    return None
