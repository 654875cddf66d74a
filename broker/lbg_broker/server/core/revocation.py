"""Taking deliveries back from the consumer that has them: asked for first, taken when the time for that is over.

A client that announced `lbg.revoke` is sent basic.revoke for either, and answers it. Whoever did not is asked nothing,
and what is taken from it counts against its prefetch until it has acknowledged it: until then it still has it.
"""

from collections.abc import Container, Iterable

from lbg_broker.amqp.methods import BasicRevokeOk
from lbg_broker.server.core.channel import Channel
from lbg_broker.server.core.consumer import Consumer
from lbg_broker.server.core.effects import Revoke
from lbg_broker.server.core.settling import forget_revoked
from lbg_broker.server.core.spool import Spool
from lbg_broker.server.core.state import State

__all__ = ["answered", "ask_back", "is_asked", "tags_of", "take_back"]


def tags_of(channel: Channel, lines: Container[Spool]) -> list[int]:
    """The deliveries of these lines that a channel holds, in order."""
    return [tag for tag, entry in channel.unsettled.items() if entry[0] in lines]


def ask_back(state: State, consumer: Consumer, tags: Iterable[int]) -> bool:
    """Ask a consumer to give back at once what it has not begun of these unsettled deliveries, in ascending order, and
    to settle the rest as soon as it can. False if its client does not know the word.

    Its answer reaches `Policy.answered`: what it still holds of them then, it is working on. Until then nothing else of
    their line may go to the same consumer, or it would overtake what comes back.
    """
    channel = consumer.channel
    if channel.closing or not channel.connection.revocable:
        return False
    for tag in [tag for tag in channel.asked if tag not in channel.unsettled]:
        del channel.asked[tag]  # of a consumer that answers nothing
    asked = list(tags)
    if asked:
        channel.asked.update(dict.fromkeys(asked, consumer))
        _say(state, consumer, asked, taken=False)
    return True


def is_asked(channel: Channel, line: Spool) -> bool:
    """Whether something of a line that the channel holds was asked back, and the answer is still to come."""
    unsettled = channel.unsettled
    return any(tag in unsettled and unsettled[tag][0] is line for tag in channel.asked)


def take_back(state: State, line: Spool, channel: Channel) -> int:
    """Return to a line what a channel holds of it, for somebody else, and say how many messages that is. The channel's
    word on them does nothing from here on."""
    of_consumer: dict[Consumer, list[int]] = {}
    messages = []
    for tag in tags_of(channel, (line,)):
        _, message, consumer = channel.unsettled.pop(tag)
        messages.append(message)
        if consumer is not None:
            channel.revoked[tag] = consumer
            of_consumer.setdefault(consumer, []).append(tag)
    for consumer, tags in of_consumer.items():
        _say(state, consumer, tags, taken=True)
    line.give_back(messages)
    state.make_due(line.queue)
    return len(messages)


def answered(state: State, channel: Channel, answer: BasicRevokeOk) -> None:
    """basic.revoke-ok. It names tags the channel was sent; others mean nothing."""
    if answer.taken:
        forget_revoked(state, channel, answer.delivery_tags)
        return
    consumers = {channel.asked.pop(tag, None): None for tag in answer.delivery_tags}
    for consumer in consumers:
        if consumer is not None:
            consumer.queue.policy.answered(consumer)
            state.make_due(consumer.queue)


def _say(state: State, consumer: Consumer, tags: list[int], *, taken: bool) -> None:
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
                is_told=channel.connection.revocable,
            ),
        )
