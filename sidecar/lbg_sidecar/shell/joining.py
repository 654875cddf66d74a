"""Claiming an index on the broker: whoever declares its mailbox first has it, as long as the connection lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from lbg_broker.client import Channel, ClientConnection, Delivery, ResourceLocked
from lbg_broker.group import Names, mailbox_of

from ..errors import IndexTaken
from ..membership.claiming import Claiming
from ..membership.encoding import LOOK

OnBody = Callable[[bytes], None]

LOOK_S = 2.0
"""A look at who is there is given up after this long: it only saves refusals."""


async def free_among(
    talk: ClientConnection, posting: Channel, names: Names, indexes: Collection[int]
) -> set[int] | None:
    """Those whose mailbox is missing: a mandatory message to it comes back, before the answer to the next request.
    None when the broker takes no messages now.

    Declaring is what claims; this only saves the refusals, which the broker would log as errors.
    """
    free: set[int] = set()
    if not indexes:
        return free
    loop = asyncio.get_running_loop()
    blocked: asyncio.Future[None] = loop.create_future()
    talk.on_blocked = lambda _: None if blocked.done() else blocked.set_result(None)
    posting.on_return = lambda returned: free.add(int(returned.routing_key))
    for index in indexes:
        posting.publish(names.members, str(index), LOOK, mandatory=True)
    answer = loop.create_task(posting.basic_qos(0))
    try:
        await asyncio.wait({answer, blocked}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            return None
        answer.result()
    finally:
        talk.on_blocked = None
        blocked.cancel()
        answer.cancel()
    return free


async def claim(
    work: ClientConnection, names: Names, claiming: Claiming, on_body: OnBody
) -> tuple[int, Channel]:
    while (index := claiming.candidate()) is not None:
        mailbox, bindings = mailbox_of(names, index)
        channel = await work.open_channel()
        try:
            await channel.queue_declare(mailbox.name, exclusive=True, arguments=dict(mailbox.arguments))
        except ResourceLocked:
            claiming.taken(index)
            continue
        for binding in bindings:
            await channel.queue_bind(binding.queue, binding.exchange, binding.routing_key)

        def on_deliveries(deliveries: list[Delivery]) -> None:
            for delivery in deliveries:
                on_body(bytes(delivery.body))

        # Without a mailbox this member would be taken for gone: then it had better be.
        await channel.consume(mailbox.name, on_deliveries, no_ack=True, on_cancelled=work.abort)
        return index, channel
    raise IndexTaken(claiming.fixed or 0)
