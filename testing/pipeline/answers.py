"""Results that every engine computes, in a comparable form."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields

Message = tuple[int, int, int]
"""Number of the publisher, hash, seq."""

Offence = tuple[str, str, Message]
"""Kind, view (empty where the kind has none) and message."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Counts of records and findings, and exactly which messages were lost and which deliveries are offences."""

    published: int = 0
    delivered: int = 0
    broken_lines: int = 0
    redelivered: int = 0
    moves: int = 0
    unpublished: int = 0
    lost: list[Message] = field(default_factory=list)
    offences: list[Offence] = field(default_factory=list)

    def __add__(self, other: Answer) -> Answer:
        both = {one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)}
        both["lost"], both["offences"] = sorted(both["lost"]), sorted(both["offences"])
        return Answer(**both)

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> Answer:
        told = json.loads(text)
        told["lost"] = sorted((p, h, s) for p, h, s in told["lost"])
        told["offences"] = sorted((kind, view, (p, h, s)) for kind, view, (p, h, s) in told["offences"])
        return cls(**told)

    def differences(self, other: Answer) -> list[str]:
        """Each with the first few messages on one side only."""
        found = []
        for one in fields(self):
            ours, theirs = getattr(self, one.name), getattr(other, one.name)
            if ours == theirs:
                continue
            if isinstance(ours, int):
                found.append(f"{one.name}: {ours} and {theirs}")
            else:
                only = sorted(set(ours) - set(theirs))[:3], sorted(set(theirs) - set(ours))[:3]
                found.append(
                    f"{one.name}: {len(ours)} and {len(theirs)}, only here {only[0]}, only there {only[1]}"
                )
        return found
