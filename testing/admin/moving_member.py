"""Stand-in for the member of a group whose keys move: it consumes all queues, joins the change and passes fences."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import suppress
from functools import partial

from lbg_core.admin.actions import AppendEntry
from lbg_core.admin.errors import AdminError, NotMoved
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.plan import recorded
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.record import Record
from lbg_core.admin.repartition import repartition_group
from lbg_core.client import BasicProperties, Channel, ClientConnection, ConfirmingPublisher, Delivery, connect
from lbg_core.group import HEADER_FENCE, TO_OBSERVERS, Names, forwarded_key, hash_in
from lbg_core.group.key_moves import BarrierEntry, JoinEntry, KeyMoveState, PassEntry, Turn
from testing.admin.place import Place
from testing.admin.reports import beat_body
from testing.waiting import GUARD_S

INDEX, INCARNATION = 0, "stand-in"
LOOK_S = 0.02


class MovingMember:
    """`joins` False: it takes no part, and knows the record's number alone. `got`: bodies as they were processed.
    `is_held`: it processes nothing."""

    def __init__(self, place: Place, group: str, *, joins: bool = True) -> None:
        self.got: list[bytes] = []
        self.is_held = False
        self._place = place
        self._admin = place.admin()  # of its own: an administrator's lock of the group is not the member's
        self._names = Names(group)
        self._joins = joins
        self._state = KeyMoveState()
        self._count = 0
        self._heads: dict[int, tuple[Channel, deque[Delivery]]] = {}

    async def run(self) -> None:
        connection = await connect(self._place.settings)
        try:
            publisher = await ConfirmingPublisher.open(connection)
            while True:
                with suppress(AdminError):  # what is read is being changed
                    await self._look()
                await self._serve(connection)
                if not self.is_held:
                    while await self._processed(publisher):
                        pass
                await publisher.publish(self._names.members, TO_OBSERVERS, beat_body(self._fields()))
                await asyncio.sleep(LOOK_S)
        finally:
            await connection.close()
            await self._admin.close()

    async def _look(self) -> None:
        group = self._names.group
        record = await self._admin.amqp.record(group)
        if record is None:
            return
        spec = recorded(group, await self._admin.observe(group))
        assert spec is not None
        if self._joins and isinstance(record, Record) and record.key_move:
            state = await self._admin.key_moves(group)
            if state.move is not None and (INDEX, INCARNATION) not in state.joined:
                await self._admin.perform(AppendEntry(group, JoinEntry(INDEX, INCARNATION)))
            self._state = state
        else:
            self._state = KeyMoveState()
        self._count = self._state.queue_count or spec.queue_count

    async def _serve(self, connection: ClientConnection) -> None:
        for number in range(self._count):
            if number in self._heads and self._heads[number][0].is_open:
                continue
            if not self._state.is_open(number):
                continue
            channel = await connection.open_channel()
            heads: deque[Delivery] = deque()
            self._heads[number] = channel, heads
            await channel.consume(
                self._names.queue(number), heads.extend, prefetch_count=50, on_cancelled=channel.close_soon
            )
        for number in [one for one in self._heads if one >= self._count]:
            self._heads.pop(number)[0].close_soon()

    async def _processed(self, publisher: ConfirmingPublisher) -> bool:
        """True if a message of any queue was processed."""
        any_processed = False
        for number, (channel, heads) in list(self._heads.items()):
            while heads and channel.is_open and await self._took(number, heads[0], publisher):
                channel.ack(heads.popleft().delivery_tag)
                any_processed = True
        return any_processed

    async def _took(self, number: int, delivery: Delivery, publisher: ConfirmingPublisher) -> bool:
        """False for a message that has to wait."""
        state = self._state
        if (fence := delivery.headers.get(HEADER_FENCE)) is not None:
            if state.move is not None and fence == state.move.id:
                for entry in (BarrierEntry("b", (number,)), PassEntry(state.move.id, number, "b")):
                    await self._admin.perform(AppendEntry(self._names.group, entry))
                    state.apply(entry)
            return True
        hash_ = hash_in(delivery.routing_key)
        assert hash_ is not None
        match state.turn(hash_, number):
            case Turn.HOLD:
                return False
            case Turn.FORWARD:
                await publisher.publish(
                    self._names.members,
                    forwarded_key(state.forwards_to(hash_)),
                    bytes(delivery.body),
                    properties=BasicProperties(delivery_mode=2),
                    mandatory=True,
                )
            case Turn.DELIVER:
                self.got.append(bytes(delivery.body))
        return True

    def _fields(self) -> dict[str, object]:
        queue = partial(dict, role="primary", active=True, status="Ready", in_flight=0, delivered=0)
        return {
            "index": INDEX,
            "name": "m0",
            "incarnation": INCARNATION,
            "rebalance": "Ready",
            "queues": [queue(queue=number) for number in range(self._count)],
            "queue_count": self._count,
            "counts": {},
        }


async def until_held_up(admin: LiveAdmin, queues: int, *kinds: Kind) -> None:
    """Repeats the change of the group `orders`, each time for a moment, until it ends for causes of these kinds, of
    each as many as it is given. Raises TimeoutError."""
    async with asyncio.timeout(GUARD_S):
        while True:
            try:
                await repartition_group(admin, "orders", queues, timeout_s=2.0)
            except NotMoved as ended:
                if Counter(kinds) <= Counter(one.kind for one in ended.problem.causes):
                    return
            else:
                raise AssertionError("nothing held the change up")
