"""basic.ack, basic.nack, basic.reject and basic.recover, and revocation of deliveries.

A client that announced `lbg.revoke` gets basic.revoke for a recall and a reassignment, and answers it. From any other
client nothing is recalled, and what is reassigned counts against its prefetch until it is acknowledged.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from lbg_broker.core.dead_letter import LETTER_COST_BYTES, dead_letter, enforce_limit, expire_messages
from lbg_broker.core.effects import Revoke
from lbg_broker.core.entities import Channel, Consumer, Unsettled, queue_of
from lbg_broker.core.errors import ChannelRefusal, ConnectionRefusal
from lbg_broker.core.message import Message
from lbg_broker.core.spool import Spool
from lbg_broker.core.state import State
from lbg_core.amqp import ReplyCode
from lbg_core.amqp.methods import (
    BasicNack,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    BasicRevokeOk,
    Method,
)


def ack(state: State, channel: Channel, delivery_tag: int, multiple: bool) -> None:
    """Settle one delivery, or all up to and including the tag (0: all there are)."""
    entries = _collect(state, channel, delivery_tag, multiple)
    for line, message, _ in entries:
        line.settle(message)
    _return_credit(state, channel, entries)


def nack(state: State, channel: Channel, method: BasicNack) -> None:
    """Give deliveries back to their places, or refuse them for good. Letters are as many at a time as fit a batch."""
    _check_refusable(channel, method.delivery_tag, multiple=method.multiple)
    if method.multiple and makes_letters(state, channel, method):
        upto = _last_that_fits(state, channel, method.delivery_tag)
        if upto is not None:
            _refuse(state, channel, _collect(state, channel, upto, True), False)
            state.retry(channel, method)
            return
    _refuse(state, channel, _collect(state, channel, method.delivery_tag, method.multiple), method.requeue)


def makes_letters(state: State, channel: Channel, method: Method) -> bool:
    """True if a command refuses messages of a queue that dead-letters."""
    if not isinstance(method, BasicNack | BasicReject) or method.requeue:
        return False
    if isinstance(method, BasicNack) and method.multiple:
        return any(_dead_letters(line) for line, _, _ in channel.unsettled.values())
    entry = channel.unsettled.get(method.delivery_tag)
    return entry is not None and _dead_letters(entry[0])


def _dead_letters(line: Spool) -> bool:
    return line.queue.rules.dead_letter_exchange is not None


def _last_that_fits(state: State, channel: Channel, delivery_tag: int) -> int | None:
    """The last tag up to which deliveries have room in the open batch as letters, the first in any case; None: all."""
    afforded, last = state.letters_afforded, None
    for tag, (_, message, _) in channel.unsettled.items():
        if delivery_tag and tag > delivery_tag:
            break
        afforded -= message.size + LETTER_COST_BYTES
        if afforded < 0 and last is not None:
            return last
        last = tag
    return None


def reject(state: State, channel: Channel, method: BasicReject) -> None:
    """The same for one delivery."""
    _check_refusable(channel, method.delivery_tag, multiple=False)
    _refuse(state, channel, _collect(state, channel, method.delivery_tag, False), method.requeue)


def _check_refusable(channel: Channel, delivery_tag: int, *, multiple: bool) -> None:
    """Raises 540 where one of the deliveries is of a stream. Nothing is settled then."""
    for tag in channel.unsettled if multiple else (delivery_tag,):
        entry = channel.unsettled.get(tag)
        if multiple and 0 < delivery_tag < tag:
            return
        if entry is not None and entry[0].keeps_messages:
            raise ConnectionRefusal(
                ReplyCode.NOT_IMPLEMENTED,
                f"basic.nack and basic.reject not supported by stream queues {entry[0].queue.where}",
            )


def recover(state: State, channel: Channel, method: BasicRecover | BasicRecoverAsync) -> None:
    """Give everything unsettled on the channel back."""
    if not method.requeue:
        raise ConnectionRefusal(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
    for line, _, _ in channel.unsettled.values():
        if line.keeps_messages:
            raise ConnectionRefusal(
                ReplyCode.NOT_IMPLEMENTED, f"basic.recover not supported by stream queues {line.queue.where}"
            )
    requeue_all(state, channel)
    _forget_revoked_between(state, channel, 0, channel.next_tag)
    if isinstance(method, BasicRecover):
        state.send(channel, BasicRecoverOk())


def requeue_all(state: State, *channels: Channel) -> None:
    """Requeues everything unsettled on these channels, all of it before anything is delivered again."""
    unsettled = [(channel, list(channel.unsettled.values())) for channel in channels]
    for channel in channels:
        channel.unsettled.clear()
    _requeue(state, unsettled)


def evict_unacked(state: State) -> None:
    """Frees memory of unsettled messages that are in the store, where there are many.

    Effects of earlier commands have been carried out by now, so the bodies are not needed. A queue that dead-letters
    retains them: a rejected message is published at once.
    """
    laden, state.laden = state.laden, set()
    for channel in laden:
        tag = channel.emptied
        while tag < channel.next_tag:
            entry = channel.unsettled.get(tag)
            if entry is not None:
                line, message, _ = entry
                if message.position >= line.written:
                    break
                if message.stored and line.queue.rules.dead_letter_exchange is None:
                    message.empty()
            tag += 1
        channel.emptied = tag


def _collect(state: State, channel: Channel, delivery_tag: int, multiple: bool) -> list[Unsettled]:
    """Take deliveries off the channel's list. Those that were revoked count no more, and close nothing. Raises 406 for
    a tag that is on neither list."""
    unsettled, revoked = channel.unsettled, channel.revoked
    if not multiple:
        entry = unsettled.pop(delivery_tag, None)
        if entry is not None:
            return [entry]
        if delivery_tag not in revoked:
            raise _unknown(delivery_tag)
        forget_revoked(state, channel, (delivery_tag,))
        return []
    if delivery_tag == 0:
        entries = list(unsettled.values())
        unsettled.clear()
        if revoked:
            _forget_revoked_between(state, channel, 0, channel.next_tag)
        return entries
    if delivery_tag not in unsettled and delivery_tag not in revoked:
        raise _unknown(delivery_tag)
    if revoked:
        _forget_revoked_between(state, channel, 0, delivery_tag)
    tags = []
    for tag in unsettled:
        if tag > delivery_tag:
            break
        tags.append(tag)
    return [unsettled.pop(tag) for tag in tags]


def _forget_revoked_between(state: State, channel: Channel, first: int, last: int) -> None:
    forget_revoked(state, channel, [tag for tag in channel.revoked if first <= tag <= last])


def forget_revoked(state: State, channel: Channel, tags: Iterable[int]) -> None:
    """The client is done with what was taken back from it: now its consumers have room for as many more."""
    for tag in tags:
        revoked = channel.revoked.pop(tag, None)
        if revoked is not None:
            consumer, size = revoked
            consumer.remove_unsettled(1, size)
            state.make_due(consumer.queue)
    if channel.limits_all:
        _free_siblings(state, channel)


def _unknown(delivery_tag: int) -> ChannelRefusal:
    return ChannelRefusal(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {delivery_tag}")


def _refuse(state: State, channel: Channel, entries: list[Unsettled], requeue: bool) -> None:
    if requeue:
        _requeue(state, [(channel, entries)])
        return
    for line, message, _ in entries:
        dead_letter(state, queue_of(line), message.origin, message.header, message.body, reason="rejected")
        if line.refuse(message):
            state.redefine(queue_of(line))
    _return_credit(state, channel, entries)


def _requeue(state: State, unsettled: Sequence[tuple[Channel, Sequence[Unsettled]]]) -> None:
    by_line: dict[Spool, list[Message]] = {}
    for _, entries in unsettled:
        for line, message, consumer in entries:
            if consumer is not None:
                consumer.remove_unsettled(1, message.size)
            by_line.setdefault(line, []).append(message)
    for line, messages in by_line.items():
        line.requeue(messages)
        state.make_due(queue_of(line))
        expire_messages(state, queue_of(line))
        enforce_limit(state, queue_of(line))
    for channel, _ in unsettled:
        if channel.limits_all:
            _free_siblings(state, channel)


def _return_credit(state: State, channel: Channel, entries: list[Unsettled]) -> None:
    """Returns prefetch credit for settled messages: of a durable queue, when the store has recorded it. An
    acknowledgement in a stream is not recorded.

    Until then a crash brings it back, so with more delivered in its place a crash would repeat more than the
    consumer's prefetch.
    """
    at_once: set[Spool] = set()
    for line, message, consumer in entries:
        if consumer is None:
            continue
        if line.durable and not line.keeps_messages:
            credits_ = state.pending.credits
            count, size = credits_.get(consumer, (0, 0))
            credits_[consumer] = (count + 1, size + message.size)
        else:
            consumer.remove_unsettled(1, message.size)
            at_once.add(line)
    for line in at_once:
        state.make_due(queue_of(line))
    state.counters.settled += len(entries)
    if at_once and channel.limits_all:
        _free_siblings(state, channel)


def credit_settled(state: State, credits_: Mapping[Consumer, tuple[int, int]]) -> None:
    """Returns credit for settled deliveries that the store has recorded, in messages and bytes."""
    for consumer, (count, size) in credits_.items():
        channel = consumer.channel
        consumer.remove_unsettled(count, size)
        state.make_due(consumer.queue)
        if channel.limits_all:
            _free_siblings(state, channel)


def _free_siblings(state: State, channel: Channel) -> None:
    """With a limit on the whole channel, room for one consumer is room for all."""
    for consumer in channel.consumers.values():
        state.make_due(consumer.queue)


def tags_of(channel: Channel, lines: Container[Spool]) -> list[int]:
    """The unsettled deliveries of these spools on a channel, in order."""
    return [tag for tag, entry in channel.unsettled.items() if entry[0] in lines]


def recall_from(state: State, consumer: Consumer, tags: Iterable[int]) -> bool:
    """Recalls these unsettled deliveries, in ascending order: the consumer returns at once what it has not begun, and
    settles the rest as soon as it can. False if its client has no basic.revoke.

    Its answer reaches `DispatchPolicy.answered`: it works on what it still has of them then. Until then nothing else of
    their spool may go to the same consumer, or it would overtake what returns.
    """
    channel = consumer.channel
    if channel.closing or not channel.connection.revocable:
        return False
    for tag in [tag for tag in channel.recalled if tag not in channel.unsettled]:
        del channel.recalled[tag]  # of a consumer without an answer
    recalled = list(tags)
    if recalled:
        channel.recalled.update(dict.fromkeys(recalled, consumer))
        _send_revoke(state, consumer, recalled, taken=False)
    return True


def is_recalled(channel: Channel, line: Spool) -> bool:
    """True if unsettled messages of a spool are recalled from the channel, without an answer yet."""
    unsettled = channel.unsettled
    return any(tag in unsettled and unsettled[tag][0] is line for tag in channel.recalled)


def reassign(state: State, line: Spool, channel: Channel) -> int:
    """Requeues a channel's unsettled messages of a spool for another consumer; returns how many. The channel's verdicts
    on them have no effect from here on."""
    of_consumer: dict[Consumer, list[int]] = {}
    messages = []
    for tag in tags_of(channel, (line,)):
        _, message, consumer = channel.unsettled.pop(tag)
        messages.append(message)
        if consumer is not None:
            channel.revoked[tag] = consumer, message.size
            of_consumer.setdefault(consumer, []).append(tag)
    for consumer, tags in of_consumer.items():
        _send_revoke(state, consumer, tags, taken=True)
    line.requeue(messages)
    state.make_due(queue_of(line))
    return len(messages)


def answered(state: State, channel: Channel, answer: BasicRevokeOk) -> None:
    """basic.revoke-ok. It names tags the channel was sent; others mean nothing."""
    if answer.taken:
        forget_revoked(state, channel, answer.delivery_tags)
        return
    consumers = {channel.recalled.pop(tag, None): None for tag in answer.delivery_tags}
    for consumer in consumers:
        if consumer is not None:
            consumer.queue.policy.answered(consumer)
            state.make_due(consumer.queue)


def _send_revoke(state: State, consumer: Consumer, tags: list[int], *, taken: bool) -> None:
    channel = consumer.channel
    if not channel.closing:
        state.emit(
            channel.connection,
            Revoke(
                channel.number,
                consumer.tag,
                taken,
                tags,
                queue=consumer.queue.name,
                is_supported=channel.connection.revocable,
            ),
        )
