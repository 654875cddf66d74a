"""A message as the JSON that a command and a stream's application get, written by template where that can be.

Nearly every message has the headers of our publisher and no others, and what they say is known from the stamp: then
nothing is decoded, and no dict is made (tests/app/test_message_json.py holds both ways to the same).
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii as _quoted

from lbg_broker.group import HEADER_KEY, HEADER_PUBLISHER, HEADER_SEQ, HEADER_TS

from ..message import Message
from ..stamp import is_only_stamped


def message_json(message: Message) -> str:
    """`message.as_json()` as text, without a line break."""
    held = message.held
    identity, delivery = held.identity, message.delivery
    if identity is None or not is_only_stamped(delivery.header):
        return json.dumps(message.as_json(), separators=(",", ":"))
    try:
        data = delivery.body.decode()
    except UnicodeDecodeError:
        return json.dumps(message.as_json(), separators=(",", ":"))
    publisher, hash_, seq = identity
    who = _quoted(publisher)
    key, key_header = "null", ""
    if held.key is not None:
        key = _quoted(held.key)
        key_header = f'"{HEADER_KEY}":{key},'
    redelivered = "true" if delivery.redelivered else "false"
    return (
        f'{{"id":{_quoted(message.id)},"group":{_quoted(message.group)},"queue":{message.queue},"hash":{hash_},'
        f'"key":{key},"publisher":{who},"seq":{seq},"topic":{_quoted(message.topic)},"attempt":{held.attempts},'
        f'"redelivered":{redelivered},"headers":{{{key_header}"{HEADER_PUBLISHER}":{who},"{HEADER_SEQ}":{seq},'
        f'"{HEADER_TS}":{held.published_at_us}}},"data":{_quoted(data)}}}'
    )
