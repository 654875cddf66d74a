"""The volume of a broker that the operator runs, which not every cluster lets grow."""

from __future__ import annotations

from ..cluster.seam import Forbidden, Invalid, Object
from .applied import Applied
from .store import Key


async def refusal_of_volume(applied: Applied, owner: Key, volume: Object, *, now: float) -> str:
    """Why the broker cannot have the volume that its manifest asks for; empty if it can. Raises ClusterError for what
    may pass by itself.

    A storage class that cannot grow volumes refuses (403), and so does the API server where one is to shrink (422). The
    broker runs on with the volume that it has, and has to be looked after all the same.
    """
    try:
        await applied.apply(owner, volume, now=now)
    except (Forbidden, Invalid) as error:
        return str(error)
    return ""
