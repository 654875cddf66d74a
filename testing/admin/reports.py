"""Status reports of members, of the fields that a test is about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lbg_core.group import MEMBERS_VERSION
from lbg_core.group.members_protocol import Beat
from lbg_core.group.message_codec import decode


def beat_of(fields: Mapping[str, Any] | Beat) -> Beat:
    """The report of these fields of its JSON, with those of its sender among them."""
    if isinstance(fields, Beat):
        return fields
    beat = decode(beat_body(fields))
    assert isinstance(beat, Beat)
    return beat


def beat_body(fields: Mapping[str, Any], *, version: int = MEMBERS_VERSION) -> bytes:
    """The same as a member sends it."""
    sender = [fields["index"], fields.get("name", "m"), fields.get("incarnation", "of m")]
    content = {name: one for name, one in fields.items() if name not in ("index", "name", "incarnation")}
    return json.dumps(
        {"v": version, "type": "beat", "sender": sender, **content}, separators=(",", ":")
    ).encode()
