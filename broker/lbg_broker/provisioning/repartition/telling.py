"""What members of a group are told about the number of its queues, as bytes of their own language.

It looks as `lbg_sidecar.membership.encoding` reads it; a member of a version that does not know the type ignores it.
"""

from __future__ import annotations

import json
import secrets

from lbg_broker.group import IDENTITY_BYTES, TO_ALL, Names

from ..actions import Announce

SENDER = "lbg group repartition"


def repartition_announced(names: Names, queue_count: int) -> Announce:
    """There are to be so many: whoever processed messages says which, for who gets their keys from now on."""
    return _told(names, queue_count, is_done=False)


def repartition_done(names: Names, queue_count: int) -> Announce:
    """There are so many, as the record says."""
    return _told(names, queue_count, is_done=True)


def _told(names: Names, queue_count: int, *, is_done: bool) -> Announce:
    message = {
        "v": 1,
        "type": "repartition",
        "index": 0,
        "name": SENDER,
        "incarnation": secrets.token_hex(IDENTITY_BYTES),
        "queues": queue_count,
        "done": is_done,
    }
    return Announce(names.members, TO_ALL, json.dumps(message, separators=(",", ":")))
