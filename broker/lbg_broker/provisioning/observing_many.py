"""One round of reading of many groups: a few lists, however many groups there are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lbg_broker.group import GroupSpec, Names
from lbg_broker.group.topology import exchanges_of, queues_of

from .amqp_side import AmqpSide
from .management_side import ManagementSide
from .observed import UNKNOWN, ExchangeSeen, Observed, QueueSeen, Unknown
from .observing import or_unknown


async def observe_many(
    amqp: AmqpSide, management: ManagementSide, specs: Sequence[GroupSpec]
) -> dict[str, Observed]:
    """What the lists show of each group, by its name. Records and bindings are not read: where a record's queue is, the
    record is taken to be that of the spec.

    Raises AdminError where exchanges or queues cannot be listed.
    """
    engine = await amqp.engine()
    groups = [spec.name for spec in specs]
    why: dict[str, str] = {}
    exchanges, queues, users, permissions, policies = await asyncio.gather(
        management.exchanges_of(groups),
        management.queues_of(groups, is_sampled=engine.is_rabbitmq),
        or_unknown("users", management.users(), why),
        or_unknown("permissions", management.all_permissions(), why),
        or_unknown("policies", management.policies(), why),
    )
    found = {}
    for spec in specs:
        names = Names(spec.name)
        needed: dict[str, ExchangeSeen | Unknown | None] = {one.name: None for one in exchanges_of(names)}
        asked: dict[str, QueueSeen | Unknown | None] = {one.name: None for one in queues_of(spec, engine)}
        found[spec.name] = Observed(
            engine,
            record=spec.to_record() if names.config in queues[spec.name] else None,
            exchanges=needed | exchanges[spec.name],
            queues=asked | queues[spec.name],
            users=users,
            permissions=UNKNOWN if permissions is UNKNOWN else permissions.get(spec.client_username),
            policies=policies,
            why=why,
        )
    return found
