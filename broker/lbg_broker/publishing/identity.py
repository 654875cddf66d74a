"""Who publishes what to which group: what a state file must agree with before a publisher goes on from it."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from lbg_broker.group import IDENTITY_BYTES, GroupSpec, incarnation_of_epoch

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")


@dataclass(frozen=True, slots=True)
class Identity:
    """A publisher's name and incarnation, and the seed of its hashes for messages without a key.

    An incarnation begins its sequences at 0. A publisher that goes on from a state file has an incarnation of its
    own for what it had not sent: the next epoch. `name`: up to 101 letters, digits, dots, dashes and underscores, else
    ValueError. `input` says how the input is read (fields, topic, format), as far as it decides keys, topics and
    bodies.
    """

    name: str
    incarnation: str = field(default_factory=lambda: secrets.token_hex(IDENTITY_BYTES))
    seed: int = field(default_factory=lambda: secrets.randbits(63))
    input: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ValueError(
                f"{self.name!r} cannot name a publisher: letters, digits, dots, dashes and underscores, at most 101, "
                "beginning with a letter or digit"
            )

    @property
    def publisher(self) -> str:
        """The value of header `lbg-publisher`."""
        return f"{self.name}-{self.incarnation}"

    def in_epoch(self, began_us: int, random: bytes) -> Identity:
        """The same publisher in a later epoch; this is the first one."""
        return replace(self, incarnation=incarnation_of_epoch(self.incarnation, began_us, random))

    def to_json(self, spec: GroupSpec) -> bytes:
        """The head of a state file."""
        return json.dumps({"publisher": asdict(self), "group": group_facts(spec)}).encode()


def group_facts(spec: GroupSpec) -> dict[str, object]:
    """What of a group decides which sequence a message gets. Not the number of its queues: that may change under a
    publisher, and a message's hash and sequence stay."""
    return {
        "name": spec.name,
        "hash_prefix": spec.hash_prefix,
        "hash_count": spec.hash_count,
        "hash_function": spec.hash_function,
    }
