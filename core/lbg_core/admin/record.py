"""Record of a group: the one message of the queue `lbg.G.config`."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from lbg_core.admin.errors import (
    GroupNotFound,
    GroupUnfinished,
    IngressIsPaused,
    KeysMove,
    RecordNewer,
    RecordUnavailable,
    RecordUnreadable,
    UnderWay,
)
from lbg_core.admin.ownership import BY_HAND, Record
from lbg_core.client import NotFound, QueueDown
from lbg_core.group import (
    HEADER_KEY_MOVE,
    HEADER_MEMBERS_PUBLISH,
    HEADER_OBJECT,
    HEADER_OWNER,
    HEADER_PARKED_FROM,
    HEADER_PARKING,
    HEADER_PAUSED,
    HEADER_PUBLISHER_USER,
    ONE_USER,
    GroupSpec,
    Names,
    NewerRecordError,
    Publishers,
    SpecError,
    repartition_in,
)
from lbg_core.group.key_moves import KeyMove

if TYPE_CHECKING:
    from lbg_core.client import Channel, Delivery

EMPTY_READS = 40
"""Another reader holds the record between its get and its requeue, for about a round trip. Forty attempts outlast any
such reader; a queue that is still empty has lost its record."""
READ_INTERVAL_S = 0.05
"""Spread by a half, so that readers that start together do not stay in step."""
MEMBER_READS = 600
"""Members of a group often start together, and each holds the record for a round trip of a busy event loop. Of 64
members with 256 queues on two cores some found it held for 2 s, and ended as if it were lost (bench: large_group)."""
ANSWER_S = 10.0
"""A quorum queue without a majority does not answer at all. An election takes a second or two."""


async def read_group(channel: Channel, group: str, *, reads: int = EMPTY_READS) -> GroupSpec:
    """The attributes of `group` as its record states them.

    Raises GroupNotFound (the broker has then closed `channel`: AMQP 0-9-1, queue.get on a missing queue is a
    channel error), its kind GroupUnfinished (`channel` is open), RecordUnavailable when its nodes are down,
    RecordUnreadable when the queue stays empty or holds no valid record, and ClientError.
    """
    record = await read_record(channel, group, reads=reads)
    if record is None:
        raise RecordUnreadable(group, "its queue is empty")
    return spec_in(record.text, group)


def spec_in(text: str, group: str) -> GroupSpec:
    """The attributes that a record's text states. Raises RecordUnreadable, its kind RecordNewer, GroupUnfinished."""
    if GroupSpec.from_unfinished(text, name=group) is not None:
        raise GroupUnfinished(group)
    try:
        return GroupSpec.from_record(text, name=group)
    except NewerRecordError as error:
        raise RecordNewer(group, error.value) from error
    except SpecError as error:
        raise RecordUnreadable(group, str(error)) from error


def refuse_change(spec: GroupSpec, record: Record) -> None:
    """Raises UnderWay and KeysMove while the number of queues of `spec`, the recorded group, changes: a hash may lead
    to two of them, whose members would process a message twice, and beside each other."""
    if (target := repartition_in(record.text)) is not None:
        raise UnderWay(spec.name, spec.queue_count, target)
    if record.key_move:
        move = KeyMove.of_id(record.key_move, spec.hash_count)
        raise KeysMove(spec.name, spec.queue_count if move is None else move.new)


def require_open(spec: GroupSpec, record: Record) -> None:
    """The same, and IngressIsPaused while nobody may publish to the group."""
    refuse_change(spec, record)
    if record.is_ingress_paused:
        raise IngressIsPaused(spec.name)


async def read_record(channel: Channel, group: str, *, reads: int = EMPTY_READS) -> Record | None:
    """The record with its owner; None when the queue is there and stays empty.

    Raises GroupNotFound, RecordUnavailable, ClientError.
    """
    name = Names(group).config
    for attempt in range(reads):
        if attempt:
            await asyncio.sleep(READ_INTERVAL_S * random.uniform(0.5, 1.5))
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
            return _record_in(delivery)
    return None


async def read_copy(channel: Channel, group: str) -> Record:
    """The latest copy of the record, which is all that the publishers' user may read.

    Raises GroupNotFound (the broker has then closed `channel`), RecordUnavailable, ClientError.
    """
    first: asyncio.Future[Record] = asyncio.get_running_loop().create_future()

    def on_deliveries(deliveries: list[Delivery]) -> None:
        if not first.done():
            first.set_result(_record_in(deliveries[0]))

    await channel.basic_qos(1)
    try:
        async with asyncio.timeout(ANSWER_S):
            await channel.consume(Names(group).record, on_deliveries, arguments={"x-stream-offset": "last"})
            return await first
    except NotFound as error:
        raise GroupNotFound(group) from error
    except TimeoutError:
        raise RecordUnavailable(group, f"no answer in {ANSWER_S:g} s") from None


_TEXTS = {
    "owner": HEADER_OWNER,
    "parked_from": HEADER_PARKED_FROM,
    "key_move": HEADER_KEY_MOVE,
    "object_name": HEADER_OBJECT,
}
"""Headers of the fields that are text."""


def _record_in(delivery: Delivery) -> Record:
    headers = delivery.headers
    texts = {
        field: text for field, name in _TEXTS.items() if isinstance(text := headers.get(name), str) and text
    }
    username, words = headers.get(HEADER_PUBLISHER_USER), headers.get(HEADER_PAUSED)
    publishers = ONE_USER
    if isinstance(username, str) and username:
        publishers = Publishers(username, headers.get(HEADER_MEMBERS_PUBLISH) is True)
    return Record(
        bytes(delivery.body).decode("utf-8", "replace"),
        publishers=publishers,
        paused=frozenset(words.split(",")) - {""} if isinstance(words, str) else frozenset(),
        has_parking=headers.get(HEADER_PARKING) is True,
        **{"owner": BY_HAND, **texts},
    )


def headers_of(record: Record) -> dict[str, str | bool]:
    """Headers of the message of a record, as `read_record` reads them."""
    headers: dict[str, str | bool] = {
        name: text for field, name in _TEXTS.items() if (text := getattr(record, field))
    }
    if record.publishers.username:
        headers[HEADER_PUBLISHER_USER] = record.publishers.username
        headers[HEADER_MEMBERS_PUBLISH] = record.publishers.members_publish
    if record.paused:
        headers[HEADER_PAUSED] = ",".join(sorted(record.paused))
    if record.has_parking:
        headers[HEADER_PARKING] = True
    return headers
