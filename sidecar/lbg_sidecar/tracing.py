"""W3C Trace Context and Baggage on their way from a publisher to an application. Nothing is traced here.

Publishers put them into AMQP headers of the same names, as OpenTelemetry's instrumentations do. An event may also have
`traceparent` and `tracestate` as attributes of its own (CloudEvents, distributed tracing extension): these say where it
was made, the headers who sent it last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PARENT, STATE, BAGGAGE = NAMES = ("traceparent", "tracestate", "baggage")

_EVENT_PREFIXES = ("cloudEvents:", "cloudEvents_")  # CloudEvents AMQP binding 1.0.2, section 3.1.3.1

VALUE_MAX_CHARS = 8192
"""W3C Baggage, section 3.3.2: so much must be passed on. More would only make servers refuse the request."""


def trace_in(headers: Mapping[str, Any]) -> dict[str, str]:
    """What of it is there and can be a header; a state without its parent says nothing."""
    found: dict[str, str] = {name: headers[name] for name in NAMES if _is_usable(headers.get(name))}
    if PARENT not in found:
        found.pop(STATE, None)
    return found


def trace_of(headers: Mapping[str, Any]) -> dict[str, str]:
    """That of a message's AMQP headers; without a parent there, that of the event itself."""
    sent = trace_in(headers)
    if PARENT in sent:
        return sent
    for prefix in _EVENT_PREFIXES:
        if prefix + PARENT in headers:
            return trace_in({name: headers.get(prefix + name) for name in (PARENT, STATE)}) | sent
    return sent


def _is_usable(value: object) -> bool:
    return (
        isinstance(value, str)
        and 0 < len(value) <= VALUE_MAX_CHARS
        and value.isascii()
        and value.isprintable()
    )
