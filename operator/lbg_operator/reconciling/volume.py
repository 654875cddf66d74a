"""The volume of a broker that the operator runs, which not every cluster lets grow."""

from __future__ import annotations

from ..cluster.seam import Forbidden, Invalid, Object
from ..status.conditions import Condition, Reason
from .applied import Applied
from .store import Key


async def volume_applied(applied: Applied, owner: Key, volume: Object, *, now: float) -> Condition:
    """Whether the broker has the volume that its manifest asks for. Raises ClusterError for what may pass by itself.

    A storage class that cannot grow volumes refuses (403), and so does the API server where one is to shrink (422). The
    broker runs on with the volume that it has, and has to be looked after all the same.
    """
    try:
        await applied.apply(owner, volume, now=now)
    except (Forbidden, Invalid) as error:
        return Condition(Reason.VOLUME_REFUSED, str(error))
    return Condition(Reason.AS_EXPECTED)
