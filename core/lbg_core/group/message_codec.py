"""JSON of the messages of members (`members_protocol`)."""

from __future__ import annotations

import json
from typing import get_args

from lbg_core.group.errors import MessageError, NewerMessage
from lbg_core.group.json_codec import UNREADABLE, JsonCodec
from lbg_core.group.members_protocol import Message
from lbg_core.group.names import MEMBERS_VERSION

_CODEC = JsonCodec[Message](get_args(Message), MEMBERS_VERSION)

encode = _CODEC.encode

LOOK = f'{{"v":{MEMBERS_VERSION},"type":"look"}}'.encode()
"""To one index, by who is no member: only its return has a meaning."""


def decode(body: bytes | memoryview) -> Message | None:
    """The message in `body`; None for a type that members do not read. Raises MessageError, and NewerMessage."""
    try:
        fields = json.loads(bytes(body))
        version = fields["v"]
        if type(version) is not int or version <= MEMBERS_VERSION:
            if version != MEMBERS_VERSION:
                raise ValueError(f"its version is {version!r}")
            return _CODEC.read(fields)
        sender = fields.get("sender")
    except UNREADABLE as error:
        raise MessageError(f"not a member's message: {type(error).__name__}: {str(error)[:200]}") from error
    name, incarnation = sender[1:3] if isinstance(sender, list) and len(sender) > 2 else ("", "")
    raise NewerMessage(str(name), version, MEMBERS_VERSION, is_member=bool(incarnation))
