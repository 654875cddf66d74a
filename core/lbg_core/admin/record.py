"""Record of a group, the one message of the queue `lbg.G.config`, and its owner, who may change the group.

The header `lbg-owner` is `by-hand`, or `kubernetes/CLUSTER-UID/OBJECT-UID`, where the first is the UID of namespace
kube-system and the second that of the LoadBalancedGroup. A record without it is by hand.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
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

BY_HAND = "by-hand"

CONSUMPTION = "consumption"
"""Of what is paused: members start no new calls."""

INGRESS = "ingress"
"""Of what is paused: nobody may publish to the group."""

KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True)
class Record:
    """Message with a group's attributes.

    - `owner`: empty where it was not read.
    - `paused`: words for what is paused, `CONSUMPTION` and `INGRESS`; None: not read.
    - `has_parking`: the group has a queue for the messages of parked keys.
    - `parked_from`: the `SnapshotPlace` from which on the stream of parked keys is read; empty: from its first entry.
    - `key_move`: id of the change of the number of queues that is on its way, with a stream of its own
      (`lbg_core.group.key_moves`); empty without one.
    - `object_name`: NAMESPACE/NAME of the LoadBalancedGroup, where the group has a name of its own; else empty.
    """

    text: str
    owner: str = ""
    publishers: Publishers = ONE_USER
    paused: frozenset[str] | None = frozenset()
    has_parking: bool = False
    parked_from: str = ""
    key_move: str = ""
    object_name: str = ""

    @property
    def is_paused(self) -> bool:
        """True if members are to start no new calls."""
        return self.paused is not None and CONSUMPTION in self.paused

    @property
    def is_ingress_paused(self) -> bool:
        """True if nobody may publish."""
        return self.paused is not None and INGRESS in self.paused

    def spec_of(self, group: str) -> GroupSpec | None:
        """The group's attributes; None for a text that has none."""
        try:
            return GroupSpec.from_record(self.text, name=group)
        except SpecError:
            return None


def paused_words(words: frozenset[str] | None, word: str = CONSUMPTION, *, is_paused: bool) -> frozenset[str]:
    """The words of a record that states whether `word` is paused; what else is paused stays so."""
    return (words or frozenset()) - {word} | ({word} if is_paused else frozenset())


def kubernetes_owner(cluster_uid: str, object_uid: str) -> str:
    """Owner of a group that a Kubernetes object asks for. `cluster_uid` is empty where it could not be read."""
    return f"{KUBERNETES}/{cluster_uid}/{object_uid}"


def is_of_kubernetes(owner: str) -> bool:
    return owner.startswith(f"{KUBERNETES}/")


def is_same_owner(one: str, other: str) -> bool:
    """True if both are one owner. A cluster that could not be read is not compared: objects' UIDs are unique."""
    if not (is_of_kubernetes(one) and is_of_kubernetes(other)):
        return one == other
    one_cluster, one_object = _parts(one)
    other_cluster, other_object = _parts(other)
    return one_object == other_object and (
        one_cluster == other_cluster or not one_cluster or not other_cluster
    )


def owner_text(owner: str) -> str:
    """An owner for people."""
    if owner == BY_HAND:
        return "by hand"
    if not is_of_kubernetes(owner):
        return owner or "not read"
    cluster, uid = _parts(owner)
    return f"Kubernetes object {uid} of cluster {cluster or 'unknown'}"


def _parts(owner: str) -> tuple[str, str]:
    cluster, _, uid = owner.removeprefix(f"{KUBERNETES}/").partition("/")
    return cluster, uid


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim of `owner` to a group.

    - `password`: by which an object of Kubernetes shows that a group that lost its record is its own: its user's, from
      the object's Secret.
    - `adopts`: a group of another owner is taken over.
    - `remedy`: what to do where the group is another owner's; empty for one by hand, which may adopt it.
    - `object_name`: of the record that the claim makes.
    """

    owner: str = BY_HAND
    password: str | None = field(default=None, repr=False)
    adopts: bool = False
    remedy: str = ""
    object_name: str = ""

    def owner_after(self, record: Record | None) -> str:
        """Owner of a group that had `record`, once the claim is accepted. The command line leaves it as it is."""
        if record is None or not is_of_kubernetes(self.owner):
            return self.owner if record is None else record.owner
        is_known = is_same_owner(record.owner, self.owner)
        return record.owner if is_known and _parts(record.owner)[0] else self.owner

    def object_after(self, record: Record | None) -> str:
        """The same for the name of the object."""
        return self.object_name if record is None or is_of_kubernetes(self.owner) else record.object_name


CLAIM_BY_HAND = Claim()


EMPTY_READS = 40
"""Another reader holds the record between its get and its requeue, for about a round trip. Forty attempts outlast any
such reader; a queue that is still empty has lost its record."""
RECORD_READS = 10
"""An administrator's, of a group that may not have a record."""
HELD_READS = 120
"""Of the record of a group that has other objects: six seconds. Members that start together hold it for two, and
RabbitMQ counts after five what is unacknowledged."""
READ_INTERVAL_S = 0.05
"""Spread by a half, so that readers that start together do not stay in step."""
TURN_S = 60.0
"""For a member to get the record. Of a group often many start together, and each holds it for a round trip of a busy
event loop: of 64 on two cores some found it held for 2 s (bench: large_group)."""
ANSWER_S = 10.0
"""A quorum queue without a majority does not answer at all. An election takes a second or two."""


async def read_group(channel: Channel, group: str, *, reads: int = EMPTY_READS) -> GroupSpec:
    """The attributes of `group` as its record states them.

    Raises GroupNotFound (the broker has then closed `channel`: AMQP 0-9-1, queue.get on a missing queue is a
    channel error), its kind GroupUnfinished (`channel` is open), RecordUnavailable when its nodes are down,
    RecordUnreadable when the queue stays empty or holds no valid record, and ClientError.
    """
    record = await read_record(channel, group, reads=reads)
    return spec_in(record.text, group)


def spec_in(text: str, group: str) -> GroupSpec:
    """The attributes that a record's text states. Raises RecordUnreadable, its kind RecordNewer, GroupUnfinished."""
    if GroupSpec.from_unfinished(text, name=group) is not None:
        raise GroupUnfinished(group)
    try:
        return GroupSpec.from_record(text, name=group)
    except NewerRecordError as error:
        raise RecordNewer(group, version=error.value) from error
    except SpecError as error:
        raise RecordUnreadable(group, cause=str(error)) from error


def refuse_change(spec: GroupSpec, record: Record) -> None:
    """Raises UnderWay and KeysMove while the number of queues of `spec`, the recorded group, changes: a hash may lead
    to two of them, whose members would process a message twice, and beside each other."""
    if (target := repartition_in(record.text)) is not None:
        raise UnderWay(spec.name, spec.queue_count, target)
    if record.key_move:
        move = KeyMove.of_id(record.key_move, spec.hash_count)
        raise KeysMove(spec.name, queues=spec.queue_count if move is None else move.new)


def require_open(spec: GroupSpec, record: Record) -> None:
    """The same, and IngressIsPaused while nobody may publish to the group."""
    refuse_change(spec, record)
    if record.is_ingress_paused:
        raise IngressIsPaused(spec.name)


@asynccontextmanager
async def _answered(group: str) -> AsyncIterator[None]:
    """Requests about the record's queue, which are answered in time. Raises GroupNotFound and RecordUnavailable."""
    try:
        async with asyncio.timeout(ANSWER_S):
            yield
    except NotFound as error:
        raise GroupNotFound(group) from error
    except QueueDown as error:
        raise RecordUnavailable(group, cause=error.reply_text) from error
    except TimeoutError:
        raise RecordUnavailable(group, cause=f"no answer in {ANSWER_S:g} s") from None


async def read_record(channel: Channel, group: str, *, reads: int = EMPTY_READS) -> Record:
    """The record with its owner.

    Raises GroupNotFound, RecordUnavailable, RecordUnreadable when the queue stays empty, and ClientError.
    """
    name = Names(group).config
    for attempt in range(reads):
        if attempt:
            await asyncio.sleep(READ_INTERVAL_S * random.uniform(0.5, 1.5))
        async with _answered(group):
            delivery = await channel.basic_get(name)
        if delivery is not None:
            channel.nack(delivery.delivery_tag, requeue=True)
            return _record_in(delivery)
    raise RecordUnreadable(group, cause="its queue is empty")


async def read_in_turn(channel: Channel, group: str) -> Record:
    """As `read_record`, for members. Where others hold the record, this one waits in line as a consumer: asking again
    and again, 256 members that start together kept RabbitMQ from letting them in. The channel is closed after it, which
    returns the record. Raises the same errors.
    """
    name = Names(group).config
    first: asyncio.Future[Record] = asyncio.get_running_loop().create_future()

    def on_deliveries(deliveries: list[Delivery]) -> None:
        channel.close_soon()  # at once, and not when who waits is run: the next one waits for it
        if not first.done():
            first.set_result(_record_in(deliveries[0]))

    def on_deleted() -> None:
        if not first.done():
            first.set_exception(GroupNotFound(group))

    async with _answered(group):
        delivery = await channel.basic_get(name)
        if delivery is None:
            await channel.consume(name, on_deliveries, prefetch_count=1, on_cancelled=on_deleted)
    if delivery is not None:
        on_deliveries([delivery])
    await asyncio.wait((first, channel.closed), timeout=TURN_S, return_when=asyncio.FIRST_COMPLETED)
    if first.done():
        return first.result()
    if channel.closed.done() and (reason := channel.closed.result()) is not None:
        raise reason
    raise RecordUnreadable(group, cause="its queue is empty")


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
        raise RecordUnavailable(group, cause=f"no answer in {ANSWER_S:g} s") from None


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
