"""A world without sockets or clocks: a broker's queues, members and their application, in virtual time.

Delays are drawn from a seed; connections are pipes that keep order; a member has two, as in reality, so that what it
says to the group and what it does to its queues are not ordered with each other. The world watches what the
application sees and keeps score.
"""

from testing.member.world.history import Chances, Item
from testing.member.world.member import SimMember
from testing.member.world.world import World

__all__ = ["Chances", "Item", "SimMember", "World"]
