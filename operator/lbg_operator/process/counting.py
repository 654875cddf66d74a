"""The lag of one group, read when somebody asks: what the external metrics API tells."""

from __future__ import annotations

from lbg_broker.provisioning import ProvisioningError
from lbg_broker.provisioning.observed import UNKNOWN
from lbg_broker.provisioning.surveying import lags

from ..cluster.kinds import GROUP
from ..errors import GroupNotFound, LagUnknown, ManifestError
from ..metrics_api import LagReader
from ..reconciling.store import Key
from ..reconciling.world import World, broker_key

MAX_AGE_S = 0.5
"""Several autoscalers that ask at once share one read of their broker."""


def lag_reader(world: World) -> LagReader:
    async def read(namespace: str, name: str) -> int:
        manifest = world.store.get(GROUP, Key(namespace, name))
        if manifest is None:
            raise GroupNotFound(namespace, name)
        try:
            group = world.group(manifest)
        except ManifestError as error:
            raise LagUnknown(
                f"the manifest of group {namespace}/{name} cannot be followed: {error}"
            ) from None
        reach = world.reach.get(broker_key(group))
        if reach is None:
            raise LagUnknown(f"the broker of group {namespace}/{name} cannot be reached")
        try:
            found = await lags(reach.admin, {name: group.spec}, max_age_s=MAX_AGE_S)
        except ProvisioningError as error:
            raise LagUnknown(str(error)) from error
        lag = found[name]
        if lag is UNKNOWN:
            raise LagUnknown(f"not every queue of group {namespace}/{name} could be counted")
        return lag

    return read
