"""Looking at many groups of one broker, as an operator does again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from lbg_broker.group import GroupSpec, Names

from .admin import BrokerAdmin
from .describing import Description
from .errors import ProvisioningError
from .observed import UNKNOWN, QueueSeen, Unknown
from .provisioner import LISTEN_S, show_group

AT_A_TIME = 16


async def survey(
    admin: BrokerAdmin, specs: Mapping[str, GroupSpec], *, listen_s: float = LISTEN_S
) -> dict[str, Description | ProvisioningError]:
    """What `show_group` tells of each group, under the same keys; what went wrong with one is said in its place.

    Raises ProvisioningError when the broker cannot be asked at all.
    """
    room = asyncio.Semaphore(AT_A_TIME)

    async def shown(spec: GroupSpec) -> Description | ProvisioningError:
        async with room:
            try:
                return await show_group(admin, spec.name, listen_s=listen_s)
            except ProvisioningError as error:
                return error

    found = await asyncio.gather(*map(shown, specs.values()))
    return dict(zip(specs, found, strict=True))


async def lags(
    admin: BrokerAdmin, specs: Mapping[str, GroupSpec], *, max_age_s: float = 0.5
) -> dict[str, int | Unknown]:
    """What waits in each group's queues, delivered or not, at most about `max_age_s` ago, under the same keys.

    UNKNOWN if one queue of the group could not be counted. Raises ProvisioningError when the broker cannot be asked.
    """
    return {key: await _lag(admin, spec) for key, spec in specs.items()}


async def _lag(admin: BrokerAdmin, spec: GroupSpec) -> int | Unknown:
    observed = await admin.observe(spec.name, wanted=spec)
    total = 0
    for number in range(spec.queue_count):
        seen = observed.queues.get(Names(spec.name).queue(number))
        if not isinstance(seen, QueueSeen) or seen.ready is UNKNOWN or seen.unacked is UNKNOWN:
            return UNKNOWN
        total += seen.ready + seen.unacked
    return total
