"""Routes of a partitioned queue: the partition that takes a message, also while the number of partitions changes.

A key has a slot, which is its hash modulo a number, and each slot has a line that takes its messages. A change of the
number of partitions moves slots to other partitions with the ingress open. The messages that a slot already has stay
in front of a *cut*, the end of the line that they are in. Messages after it go to a *staged* line of the new
partition. Nothing of a staged line is delivered before everything in front of its cuts is settled. When all messages
of a staged line are delivered, its slots go to the partition's own line, which stays behind it until they are settled.
So no consumer gets a message of a key before an earlier one is settled or in the hands of the same consumer.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import lcm
from random import Random
from typing import TYPE_CHECKING, Any, Final

from lbg_broker.core.message import Message, Origin
from lbg_broker.core.spool import Spool
from lbg_core.counted_nouns import counted
from lbg_core.group.hashing import HASH_FUNCTIONS, murmur2_of_bytes
from lbg_core.group.keys import key_reader

if TYPE_CHECKING:
    from lbg_broker.core.arguments import PartitionedArguments
    from lbg_broker.core.entities import Consumer


REMEMBERED_KEYS: Final = 16_384
"""Keys repeat: this many with their slots cost 2 MB at most where they are short."""
REMEMBERED_BYTES: Final = 64
"""Longer ones are hashed each time."""

SLOTS_MAX: Final = 65_536
"""Slots of a queue at most while its number of partitions changes, unless its hashes are more."""


def placing(rules: PartitionedArguments, slots: int | None = None) -> Callable[[bytes], int]:
    """A function from a message's encoded properties to its slot, one of `slots` (as many as partitions, if None).

    A message without a key gets `slots` and the number of a random partition added.
    """
    key_of = key_reader()
    hash_of, hash_count, count = _HASHES[rules.hash], rules.hash_count, rules.count
    modulus, beyond = (count, 0) if slots is None else (slots, slots)
    remembered: dict[bytes, int] = {}
    random = Random(count).random  # it spreads, and need not be secret

    def place(header: bytes) -> int:
        key = key_of(header)
        if key is None:
            return beyond + int(random() * count)
        slot = remembered.get(key)
        if slot is None:
            hashed = hash_of(key)
            slot = (hashed if hash_count is None else hashed % hash_count) % modulus
            if len(key) <= REMEMBERED_BYTES:
                if len(remembered) >= REMEMBERED_KEYS:
                    remembered.clear()
                remembered[key] = slot
        return slot

    return place


def _modulo(key: bytes) -> int:
    """A key that is no number has to go somewhere too, and always to the same partition."""
    try:
        return HASH_FUNCTIONS["modulo"](key.decode())
    except ValueError:
        return zlib.crc32(key)


_HASHES: Final[dict[str, Callable[[bytes], int]]] = {
    "crc32": zlib.crc32,
    "java": lambda key: HASH_FUNCTIONS["java"](key.decode()),
    "murmur2": lambda key: murmur2_of_bytes(key) & 0x7FFFFFFF,
    "modulo": _modulo,
}


class PartitionSpool(Spool):
    """One consumer, `holder`, has all its unsettled messages. `on_drained` is called when they are settled; None:
    nothing waits for that. `paused_at`: since when it waits for that, and `handoff_s`: how long the last handoff
    took; None before the first one, and after a restart of the broker.

    `ahead`: staged lines of the same partition, of which everything that is ready is delivered before anything of this
    line.
    """

    __slots__ = ("ahead", "handoff_s", "holder", "on_drained", "paused_at", "settled_before")

    def __init__(self, spool: int, *, durable: bool, touched: list[Spool]) -> None:
        super().__init__(spool, durable=durable, touched=touched)
        self.holder: Consumer | None = None
        self.on_drained: Callable[[], None] | None = None
        self.paused_at: float | None = None
        self.handoff_s: float | None = None
        self.ahead: tuple[PartitionSpool, ...] = ()
        self.settled_before = 0
        """Positions without a message when the broker started."""

    @property
    def settled(self) -> int:
        """Messages that have left it since the broker's start."""
        return self.next_position - self.settled_before - self.ready - self.outstanding

    @property
    def is_behind(self) -> bool:
        """True if lines ahead of it have messages to deliver."""
        return any(line.ready for line in self.ahead)

    def settle(self, message: Message) -> None:
        Spool.settle(self, message)  # for every acknowledgement: a third faster than super()
        if self.on_drained is not None and not self.outstanding:
            self.on_drained()

    def is_unsettled_below(self, position: int) -> bool:
        """True if a message in front of a position is not settled, delivered or not."""
        if self.dropped:
            return False
        if self.ready and self.lowest_ready < position:
            return True
        if not self.outstanding or self.holder is None:
            return False
        unsettled = self.holder.channel.unsettled.values()
        return any(line is self and message.position < position for line, message, _ in unsettled)


Cut = tuple[PartitionSpool, int]
"""A line, and the position that is the end of what has to be settled."""


@dataclass(eq=False, slots=True)
class StagedLine:
    """`slots` go to the line; none any more when they go elsewhere. `cuts`: what has to be settled before anything of
    it is delivered. `is_ahead`: its slots went to the partition's own line, which is behind it."""

    line: PartitionSpool
    partition: int
    slots: list[int]
    cuts: list[Cut]
    is_ahead: bool = False

    @property
    def is_open(self) -> bool:
        return not self.cuts

    @property
    def is_over(self) -> bool:
        return not (self.slots or self.line.ready or self.line.outstanding)


class Routes:
    """`own`: each partition's own line. Those from `rules.count` on take no messages any more, and go when they are
    empty. `new_line` and `drop_line` add and remove lines of the queue. `advance` is called with each dispatch of the
    queue, and so when a consumer settles something."""

    def __init__(
        self,
        rules: PartitionedArguments,
        own: list[PartitionSpool],
        *,
        new_line: Callable[[], PartitionSpool],
        drop_line: Callable[[PartitionSpool], None],
    ) -> None:
        self.rules = rules
        self.own = own
        self.staged: list[StagedLine] = []
        self.append: Callable[[Origin, bytes, bytes], None]
        """Put a message at the end of the line of its slot."""
        self._new_line = new_line
        self._drop_line = drop_line
        self._slots: list[PartitionSpool] = []
        """The line of each slot; empty while no slot is on its way."""
        self._waiting: dict[Cut, list[StagedLine]] = {}
        self._route()

    @property
    def is_moving(self) -> bool:
        """True while slots are on their way, or partitions that are too many hold messages."""
        return bool(self.staged) or len(self.own) > self.rules.count

    def lines_of(self, partition: int) -> list[PartitionSpool]:
        """Staged lines of a partition, and its own."""
        own = self.own[partition]
        if not self.staged:
            return [own]
        return [*(one.line for one in self.staged if one.partition == partition), own]

    def deliverable(self, partitions: Collection[int]) -> list[PartitionSpool]:
        """Lines of these partitions that may be delivered from, those last that are behind others."""
        own = [self.own[partition] for partition in partitions]
        if not self.staged:
            return own
        wanted = frozenset(partitions)
        return [*(one.line for one in self.staged if one.is_open and one.partition in wanted), *own]

    # --- changes -----------------------------------------------------------------------------------------------

    def change(self, rules: PartitionedArguments) -> None:
        """Lead each slot to its partition of these rules.

        Raises ValueError if that needs more than `SLOTS_MAX` slots; nothing is changed then.
        """
        lines = self._slots_for(rules)
        while len(self.own) < rules.count:
            self.own.append(self._new_line())
        partition_of = {line: partition for partition, line in enumerate(self.own)}
        partition_of |= {one.line: one.partition for one in self.staged}
        staged_by = {one.line: one for one in self.staged}
        targets: dict[tuple[PartitionSpool, int], PartitionSpool] = {}
        for slot, line in enumerate(lines):
            partition = slot % rules.count
            if partition_of[line] == partition:
                continue
            if (line, partition) not in targets:
                targets[line, partition] = self._target(line, staged_by.get(line), partition)
            lines[slot] = targets[line, partition]
        staged_by = {one.line: one for one in self.staged}
        for one in self.staged:
            one.slots = []
        for slot, line in enumerate(lines):
            if line in staged_by:
                staged_by[line].slots.append(slot)
        self.rules, self._slots = rules, lines
        self._lines_changed()

    def _slots_for(self, rules: PartitionedArguments) -> list[PartitionSpool]:
        """The line of each slot as it is, with enough slots to tell apart what these rules do."""
        former = self._slots or self.own[: self.rules.count]
        slots = rules.hash_count if rules.hash_count is not None else lcm(len(former), rules.count)
        if slots > max(SLOTS_MAX, rules.hash_count or 0):
            raise ValueError(
                f"a change from {self.rules.count} to {counted(rules.count, 'partition')} divides the keys into "
                f"{slots} parts, and {SLOTS_MAX} is the limit: wait until no other change is under way, or choose a "
                "number that has a larger divisor in common with the present one"
            )
        return [former[slot % len(former)] for slot in range(slots)]

    def _target(self, line: PartitionSpool, staged: StagedLine | None, partition: int) -> PartitionSpool:
        """The line for slots that leave `line`: a staged one if they can have messages that are not settled."""
        behind = [line, *line.ahead]
        cuts = [(one, one.next_position) for one in behind if one.ready or one.outstanding]
        if staged is not None:
            cuts = [*staged.cuts, *cuts]
        if not cuts:
            return self.own[partition]
        target = self._new_line()
        self.staged.append(StagedLine(target, partition, [], cuts))
        return target

    def advance(self) -> bool:
        """Does what settled messages permit; True if it changed something."""
        is_changed = False
        for (line, position), waiting in self._waiting.items():
            if not line.is_unsettled_below(position):
                is_changed = True
                for one in waiting:
                    one.cuts.remove((line, position))
        for one in list(self.staged):
            if one.slots and one.is_open and not one.line.ready:
                own = self.own[one.partition]
                for slot in one.slots:
                    self._slots[slot] = own
                one.slots = []
                one.is_ahead = is_changed = True
            if one.is_over:
                self.staged.remove(one)
                self._drop_line(one.line)
                is_changed = True
        while len(self.own) > self.rules.count and not self._holds(len(self.own) - 1):
            self._drop_line(self.own.pop())
            is_changed = True
        if is_changed:
            self._lines_changed()
        return is_changed

    def _holds(self, partition: int) -> bool:
        return any(line.ready or line.outstanding for line in self.lines_of(partition))

    def discard(self, count: int) -> int:
        """Drops partitions from `count` on, to which no slot leads, with all their messages; returns how many those
        were."""
        removed = [line for partition in range(count, len(self.own)) for line in self.lines_of(partition)]
        held = sum([line.ready + line.outstanding for line in removed])
        gone = frozenset(removed)
        self.staged = [one for one in self.staged if one.line not in gone]
        for one in self.staged:
            one.cuts = [cut for cut in one.cuts if cut[0] not in gone]
        del self.own[count:]
        for line in removed:
            self._drop_line(line)
        self._lines_changed()
        return held

    def _lines_changed(self) -> None:
        self._waiting = {}
        for one in self.staged:
            for cut in one.cuts:
                self._waiting.setdefault(cut, []).append(one)
        ahead: dict[int, list[PartitionSpool]] = {}
        for one in self.staged:
            if one.is_ahead:
                ahead.setdefault(one.partition, []).append(one.line)
        for partition, own in enumerate(self.own):
            own.ahead = tuple(ahead.get(partition, ()))
        self._route()

    def _route(self) -> None:
        """Sets `append`."""
        if not any(one.slots for one in self.staged):
            self._slots = []
        own = self.own[: self.rules.count]
        place = placing(self.rules, len(self._slots) or None)
        appends = [line.append for line in (*self._slots, *own)]

        def append(origin: Origin, header: bytes, body: bytes) -> None:
            appends[place(header)](origin, header, body)

        self.append = append

    # --- across a restart --------------------------------------------------------------------------------------

    def stored(self) -> Mapping[str, Any]:
        """The slots on their way as JSON, for `restore`."""
        return {
            "slots": len(self._slots),
            "staged": [
                {
                    "line": one.line.id,
                    "partition": one.partition,
                    "slots": one.slots,
                    "cuts": [[line.id, position] for line, position in one.cuts],
                    "is_ahead": one.is_ahead,
                }
                for one in self.staged
            ],
        }

    def restore(self, stored: Mapping[str, Any], staged: Collection[PartitionSpool]) -> None:
        """Slots as `stored` gave them. `staged` are the lines that it names. Cuts of lines that are gone are over."""
        lines = {line.id: line for line in (*self.own, *staged)}
        self._slots = [self.own[slot % self.rules.count] for slot in range(stored["slots"])]
        for one in stored["staged"]:
            line, slots = lines[one["line"]], list(one["slots"])
            cuts = [(lines[id_], position) for id_, position in one["cuts"] if id_ in lines]
            self.staged.append(StagedLine(line, one["partition"], slots, cuts, one["is_ahead"]))
            for slot in slots:
                self._slots[slot] = line
        self._lines_changed()
