"""The application, which all members share: how long its calls take, how they end, and what it must never see."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.message import ACK, INTERRUPTED, Verdict, drop, retry
from testing.member.world.queues import Item

if TYPE_CHECKING:
    from testing.member.world.member import SimMember
    from testing.member.world.world import World


@dataclass(eq=False)
class Call:
    member: SimMember
    held: InFlight
    item: Item
    cut_off: bool = False  # its connection was lost, or a shutdown did not wait for it
    ended: bool = False


class Application:
    def __init__(self, world: World) -> None:
        self.world = world
        self._started: set[tuple[str, int, int]] = set()
        self._highest: dict[str, int] = {}  # by key
        self._inside: dict[str, list[Call]] = defaultdict(list)  # by key

    def starts(self, member: SimMember, held: InFlight) -> None:
        world = self.world
        item: Item = held.delivery
        # A connection may be lost before its member can know.
        is_lost = member.link is None or not member.link.open or world.broker.has_taken_back(held)
        call = Call(member, held, item, cut_off=is_lost)
        member.calls[held] = call
        if held.first_started_at == world.now and (
            world.finished[item.identity] or world.dead[item.identity]
        ):
            world.repeats += 1
        if item.key is not None:
            for other in self._inside[item.key]:
                if other.member is member or not (other.cut_off or call.cut_off):
                    world.violations.append(
                        f"{world.now:.3f} {member.name} and {other.member.name} both in {item}"
                    )
            if item.identity not in self._started and item.seq < self._highest.get(item.key, -1):
                world.violations.append(f"{world.now:.3f} inversion at {member.name}: {item}")
            self._highest[item.key] = max(item.seq, self._highest.get(item.key, -1))
            self._inside[item.key].append(call)
            if world.rules.parking is not None and not world.finished[item.identity]:
                for earlier in world.earlier_of_key(item):
                    if not world.finished[earlier] and not world.dead[earlier]:
                        world.violations.append(
                            f"{world.now:.3f} {item} at {member.name} before {earlier} is processed"
                        )
        self._started.add(item.identity)
        slow = world.random.random() < world.chances.slow
        seconds = world.chances.slow_s if slow else world.random.random() * 2 * world.chances.call_s
        if world.calm:
            seconds = 0.001
        world.at(world.now + seconds, lambda: self._ends(call, self._verdict(item)))

    def aborts(self, call: Call) -> None:
        self.world.at(self.world.now + self.world.delay(), lambda: self._ends(call, INTERRUPTED))

    def _ends(self, call: Call, verdict: Verdict) -> None:
        if call.ended:
            return
        if call.member.stalled:
            # Nobody reads what the child answers; the fence will abort the call.
            if verdict is INTERRUPTED:
                self.world.at(self.world.now + 0.1, lambda: self._ends(call, verdict))
            return
        if call.held.abort_reason is None and verdict is INTERRUPTED and not call.held.attachment.closed:
            return
        self.leave(call)
        member = call.member
        if not member.alive:
            return
        if verdict is ACK:
            self.world.finished[call.item.identity] += 1
        member.machine.end(call.held, verdict, self.world.now)
        member.run()

    def leave(self, call: Call) -> None:
        call.ended = True
        call.member.calls.pop(call.held, None)
        if call.item.key is not None:
            self._inside[call.item.key].remove(call)

    def _verdict(self, item: Item) -> Verdict:
        if item.key in self.world.failing and not self.world.calm:
            return retry("it is poison")
        luck = self.world.random.random()
        if self.world.calm or luck >= self.world.chances.retry + self.world.chances.drop:
            return ACK
        return retry("not now", after_s=0.05) if luck < self.world.chances.retry else drop("no good")
