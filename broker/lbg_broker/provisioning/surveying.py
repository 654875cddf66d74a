"""Looking at many groups of one broker, as an operator does again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lbg_broker.group import GroupSpec

from .admin import Beat
from .describing import Description, describe
from .errors import AdminError, GroupNotFound, ProvisioningError, Refused, Unreachable
from .live import LiveAdmin
from .observed import UNKNOWN, Observed, Unknown
from .provisioner import LISTEN_S


async def survey(
    admin: LiveAdmin, specs: Mapping[str, GroupSpec], *, listen_s: float = LISTEN_S
) -> dict[str, Description | ProvisioningError]:
    """What `show_group` tells of each group, under the same keys, from a few lists for all of them.

    What went wrong with one group is said in its place. Messages are counted as the management API counts them, on
    RabbitMQ up to 5 s ago. Records and bindings are not looked at, so nothing is said of what is wrong with them.

    Raises AdminError when the broker cannot be asked at all, and Unsupported without a management API.
    """
    observed = await admin.observe_many(list(specs.values()))
    served = [name for name, one in observed.items() if one.is_served(name)]
    beats: Mapping[str, Sequence[Beat] | AdminError] = {}
    if served:
        try:
            beats = await admin.listen_many(served, seconds=listen_s)
        except (Refused, Unreachable) as error:
            # The user may not make a queue to listen with, or nobody can: most nodes of RabbitMQ 4.3 are down.
            beats = dict.fromkeys(served, error)
    return {
        key: _described(spec.name, observed[spec.name], beats.get(spec.name, ()))
        for key, spec in specs.items()
    }


async def lags(
    admin: LiveAdmin, specs: Mapping[str, GroupSpec], *, max_age_s: float = 0.5
) -> dict[str, int | Unknown]:
    """What waits in each group's queues, delivered or not, under the same keys: as counted at most `max_age_s` before
    now. UNKNOWN if one queue of the group could not be counted. See `lagging` for how, and how old parts of it may be.

    Raises AdminError when the broker cannot be asked at all.
    """
    found = await admin.lags(list(specs.values()), max_age_s=max_age_s)
    return dict(zip(specs, found, strict=True))


async def backlogs(admin: LiveAdmin, specs: Mapping[str, GroupSpec]) -> dict[str, int | Unknown]:
    """The backlog of each group, under the same keys, counted now and without members' heartbeats.

    The embedded broker counts unacknowledged messages too, RabbitMQ ready ones only.

    Raises AdminError when the broker cannot be asked at all.
    """
    found = await admin.backlogs(list(specs.values()))
    return dict(zip(specs, found, strict=True))


def _described(
    group: str, observed: Observed, beats: Sequence[Beat] | AdminError
) -> Description | ProvisioningError:
    if observed.is_empty:
        return GroupNotFound(group)
    if isinstance(beats, AdminError):
        why = {**observed.why, "members": str(beats)}
        return describe(group, replace(observed, why=why), beats=UNKNOWN)
    return describe(group, observed, beats=beats)
