"""Faults of groups that are assigned by load: slow members, lost hints, and the proposals of a second coordinator."""

from __future__ import annotations

from lbg_core.group.member_state import Placement
from lbg_core.group.members_protocol import Place
from testing.simulation.faults import Fault, Installation, chosen_member, fault
from testing.simulation.member import SimMember

SLOWNESS_MAX = 150.0
"""Of a member whose calls take 1.5 s in the mean: an eighth of the messages are too much for it."""

LATE_MAX_S = 5.0


@fault(4, of_load=True)
def slow_member(history: Installation, it: Fault) -> None:
    member = chosen_member(history, it.choice)
    if member is not None:
        factor = SLOWNESS_MAX**it.size
        history.note(f"calls of {member.name} take {factor:.0f} times as long from now on")
        history.application.slowness[member.name] = factor


@fault(2, of_load=True)
def lose_hints(history: Installation, it: Fault) -> None:
    member = chosen_member(history, it.choice)
    if member is not None:
        seconds = 0.1 * 100**it.size
        history.note(f"what {member.name} sends to all is lost for {seconds:.1f} s")
        member.mute_until = history.clock.now + seconds


@fault(4, of_load=True)
def propose(history: Installation, it: Fault) -> None:
    """A move as a member knows the group, whoever the coordinator is. It may come late."""
    proposer = chosen_member(history, it.choice)
    if proposer is None or proposer.driver is None or (me := proposer.machine.roster.me) is None:
        return
    roster, rules = proposer.machine.roster, proposer.machine.rules
    primaries = rules.primaries(roster.live)[: rules.queue_count]
    queue = int(it.size * len(primaries))
    identities = {me.index: me, **{index: one.identity for index, one in roster.peers.items()}}
    mover = next((one for index, one in identities.items() if index == primaries[queue]), None)
    to = identities[sorted(identities)[int(it.choice * 1000) % len(identities)]]
    if mover is None or mover == to:
        return
    place = Place(me, mover.incarnation, (Placement(queue, to.incarnation, roster.placements.number(queue)),))
    member = next((one for one in history.members if one.name == mover.name), None)
    if member is not None:
        history.note(f"{me.name} proposes queue {queue} of {mover.name} to {to.name}")
        history.clock.after(LATE_MAX_S * it.size**3, member.process, SimMember.receive, member, place)
