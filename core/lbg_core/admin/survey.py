"""Survey of many groups at once: description and status reports of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lbg_core.admin.describe import Description, describe
from lbg_core.admin.errors import AdminError, GroupNotFound, ProvisioningError, Refused, Unreachable
from lbg_core.admin.groups import LISTEN_S
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.snapshot import UNKNOWN, Snapshot
from lbg_core.admin.status_reports import CollectedReports
from lbg_core.group import GroupSpec


@dataclass(frozen=True, slots=True)
class Described:
    """A description, and what it was made from."""

    observed: Snapshot
    digests: frozenset[bytes]
    """Of the members' beats."""
    description: Description


KNOWN_MAX = 2000
"""Descriptions that are kept for the next survey."""


async def survey(
    admin: LiveAdmin,
    specs: Mapping[str, GroupSpec],
    *,
    listen_s: float = LISTEN_S,
    cache: dict[str, Described] | None = None,
) -> dict[str, Description | ProvisioningError]:
    """Description of each group as by `show_group`, under the same keys, from a few lists for all of them.

    `cache` is filled: with it the next survey reuses the objects that have not changed since.

    An error of one group is in its place. Messages are counted as by the management API, on RabbitMQ up to 5 s ago.
    Records and bindings are not read, so their problems are not reported.

    Raises AdminError when the broker cannot be reached at all, and Unsupported without a management API.
    """
    observed = await admin.observe_many(list(specs.values()))
    served = [name for name, one in observed.items() if one.is_served(name)]
    beats: Mapping[str, CollectedReports | AdminError] = {}
    if served:
        try:
            beats = await admin.listen_many(served, seconds=listen_s)
        except (Refused, Unreachable) as error:
            # The user may not declare a queue for reports, or no user can: most nodes of RabbitMQ 4.3 are down.
            beats = dict.fromkeys(served, error)
    cache = {} if cache is None else cache
    described = {
        key: _described(spec.name, observed[spec.name], beats.get(spec.name), cache)
        for key, spec in specs.items()
    }
    while len(cache) > KNOWN_MAX:  # those that were not surveyed for the longest time
        del cache[next(iter(cache))]
    return described


def _described(
    group: str, observed: Snapshot, reports: CollectedReports | AdminError | None, cache: dict[str, Described]
) -> Description | ProvisioningError:
    last = cache.pop(group, None)
    if observed.is_empty:
        return GroupNotFound(group)
    if isinstance(reports, AdminError):
        return describe(group, observed, beats=reports)
    digests = frozenset() if reports is None else reports.digests
    if last is not None and last.digests == digests and _is_same(last.observed, observed):
        cache[group] = last
        return last.description
    description = describe(group, observed, beats=() if reports is None else reports.beats)
    # Else members changed meanwhile or report by two keys, and which message came last counts.
    if description.members is not UNKNOWN and len(description.members) == len(digests):
        cache[group] = Described(observed, digests, description)
    return description


def _is_same(last: Snapshot, observed: Snapshot) -> bool:
    """Users are of the whole broker: they are not compared for each group."""
    return last is observed or (last.users is observed.users and last == observed)
