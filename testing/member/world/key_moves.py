"""An administrator who changes the number of queues while messages come in, and may be killed at any step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lbg_core.group.key_moves import BeginEntry, EndEntry, KeyMove, KeyMoveState
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import KeysMove
from lbg_core.group.message_codec import encode
from testing.member.world.world import World

FENCE_DELAY_S = 0.2
NEARLY_EMPTY = 20
LOOK_S = 0.05
SENDER = Identity(0, "lbg group repartition", "command")


class KeyMover:
    """`start` begins a change or goes on with it; `kill` ends the command, and nothing else. `both_s`: for so long each
    hash has two bindings, beside a delay. `unbound` is called with the number of a queue before it gets its fence."""

    def __init__(
        self, world: World, *, both_s: float = 0.0, unbound: Callable[[int], None] = lambda _queue: None
    ) -> None:
        self.world = world
        self._both_s = both_s
        self._unbound = unbound
        self.lives = 0
        self.is_running = False

    def start(self, queue_count: int) -> None:
        if not self.is_running:
            self.lives += 1
            self.is_running = True
            self._go_on(self._steps(queue_count), self.lives)

    def kill(self) -> None:
        self.lives += 1
        self.is_running = False

    def _go_on(self, steps: Iterator[float], life: int) -> None:
        if life != self.lives:
            return
        seconds = next(steps, None)
        if seconds is None:
            self.is_running = False
        else:
            self.world.at(self.world.now + seconds, lambda: self._go_on(steps, life))

    @property
    def state(self) -> KeyMoveState:
        state = KeyMoveState()
        for entry in self.world.broker.moves_log or ():
            state.apply(entry)
        return state

    def _steps(self, queue_count: int) -> Iterator[float]:
        """Seconds until the next step, again and again."""
        world, broker = self.world, self.world.broker
        if broker.key_move is None:
            if queue_count == world.queue_count or len(broker.queues) > world.queue_count:
                yield from self._delete_surplus()
                return
            id_ = f"{world.queue_count}-{queue_count}-{world.random.getrandbits(32):x}"
            move = KeyMove(id_, world.queue_count, queue_count, world.hash_count)
            broker.moves_log = []
            broker.add_queues(move.queue_count)
            yield 0.01
            broker.record_move(BeginEntry(move))
            yield 0.01
            broker.key_move = move
        move = broker.key_move
        yield 0.01
        broker.record_move(BeginEntry(move))
        while not self._have_all_joined():
            broker.post_to_all(encode(KeysMove(SENDER, move.id)))
            yield LOOK_S
        for old, staging in move.staging.items():
            yield from self._switch(
                move, old, {hash_: staging for hash_ in move.hashes if hash_ % move.old == old}
            )
        while (passed := self.state.passed) is not None and not set(move.sources) <= passed.keys():
            for old, staging in move.staging.items():
                if (
                    old in passed
                    and staging not in passed
                    and len(broker.queues[staging].ready) <= NEARLY_EMPTY
                ):
                    to = {hash_: hash_ % move.new for hash_ in move.hashes if hash_ % move.old == old}
                    yield from self._switch(move, staging, to)
            yield LOOK_S
        broker.record_move(EndEntry(move.id))
        yield 0.01
        world.queue_count = move.new
        yield 0.01
        broker.key_move = None
        yield from self._delete_surplus()

    def _delete_surplus(self) -> Iterator[float]:
        world = self.world
        while any(queue.ready or queue.holds for queue in world.broker.queues[world.queue_count :]):
            for queue in world.broker.queues[world.queue_count :]:
                while queue.ready and not queue.consumers:  # fences, and what was routed late
                    item = queue.ready.popleft()
                    if item.fence is None:
                        world.broker.publish_again(item)
            yield LOOK_S
        world.broker.delete_queues(world.queue_count)
        world.broker.delete_moves()

    def _switch(self, move: KeyMove, source: int, targets: dict[int, int]) -> Iterator[float]:
        routes = self.world.broker.routes
        is_left = False
        for hash_, target in targets.items():
            if source in routes[hash_]:
                is_left = True
                if target not in routes[hash_]:
                    routes[hash_].append(target)
                yield self._both_s + self.world.delay()
                routes[hash_].remove(source)
        self._unbound(source)
        if is_left or not self.world.broker.has_fence(source):
            yield FENCE_DELAY_S
            self.world.broker.fence(source, move.id)

    def _have_all_joined(self) -> bool:
        joined = self.state.joined
        roster = (link.driver.machine.roster.me for link in self.world.broker.links)
        return all(me is None or (me.index, me.incarnation) in joined for me in roster)
