"""Traces of messages, by OpenTelemetry's conventions for messaging spans.

A publisher makes a span `send GROUP` for each message, from its acceptance to the broker's confirm, and gives its
context to the message as the headers `traceparent` and `tracestate` (W3C Trace Context). A member makes a span
`deliver GROUP`, from the arrival of a message to its first call, and `process GROUP` for each call of the application;
both have the sender's span as their parent, and the application gets the context of `process`.

Nothing of OpenTelemetry is imported here unless the standard variables ask for an exporter (`exporting`), or the
program has set a tracer provider itself (`tracing`).

TracingError   the variables cannot be followed: what to install, or which value to change
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lbg_core.extras import install_command
from lbg_core.peers import printable

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

log = logging.getLogger("lbg.tracing")

SYSTEM: Final = "lbg"
"""`messaging.system`, on both engines."""

EXPORTERS: Final = "OTEL_TRACES_EXPORTER"
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
DISABLED: Final = "OTEL_SDK_DISABLED"
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HTTP: Final = "http/protobuf"

FLUSH_MS: Final = 2000
"""For the spans of the end of a process."""

QUIET_S: Final = 60.0
"""Between two lines about an exporter that fails."""


Attributes: TypeAlias = dict[str, str | int | bool]


class TracingError(Exception):
    """One line for a person."""


def is_requested(environment: Mapping[str, str]) -> bool:
    """True if the standard variables name an exporter of traces (OpenTelemetry, "Environment Variable
    Specification")."""
    if environment.get(DISABLED, "").strip().lower() == "true":
        return False
    exporter = environment.get(EXPORTERS, "").strip()
    return exporter != "none" and bool(exporter or any(environment.get(name) for name in ENDPOINTS))


@contextmanager
def exporting(service: str, environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """For the length of the block: export the spans of this process, if the variables ask for it. `service` is its
    `service.name` unless they have one. A collector that is away delays nothing, and is logged once a minute.

    Raises TracingError.
    """
    if not is_requested(environment):
        yield
        return
    provider = _provider(service, environment)
    try:
        yield
    finally:
        provider.force_flush(FLUSH_MS)
        provider.shutdown()


def tracing(client: str) -> Tracing | None:
    """Traces of a publisher or member, whose name is `client`; None where no tracer provider is set in this process."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Tracing(trace.get_tracer("lbgroup"), client)


class Tracing:
    """Spans of one publisher or member."""

    def __init__(self, tracer: Tracer, client: str) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._client = client
        self._trace = trace
        self._context = context
        self._propagator = TraceContextTextMapPropagator()

    def send(self, group: str, parent: Mapping[str, str]) -> Span:
        """The span of a message that is accepted. `parent`: the caller's context, else that of this task."""
        context = self._propagator.extract(parent) if parent else None
        return self._tracer.start_span(
            f"send {group}",
            context,
            kind=self._trace.SpanKind.PRODUCER,
            attributes=self._attributes("send", "send", group),
        )

    def deliver(self, group: str, headers: Mapping[str, str], *, waited_s: float, **known: Any) -> None:
        """A message that arrived `waited_s` ago and is called for the first time now."""
        ended_ns = time.time_ns()
        span = self._tracer.start_span(
            f"deliver {group}",
            self._propagator.extract(headers),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=self._attributes("receive", "deliver", group) | attributes_of(**known),
            start_time=ended_ns - round(waited_s * 1e9),
        )
        span.end(ended_ns)

    def process(self, group: str, headers: Mapping[str, str], **known: Any) -> CallSpan:
        """The span of a call that begins now."""
        span = self._tracer.start_span(
            f"process {group}",
            self._propagator.extract(headers),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=self._attributes("process", "process", group) | attributes_of(**known),
        )
        return CallSpan(self, span)

    def headers_of(self, span: Span) -> dict[str, str]:
        """Its context, as W3C headers."""
        headers: dict[str, str] = {}
        self._propagator.inject(headers, self._trace.set_span_in_context(span))
        return headers

    def current(self, span: Span) -> AbstractContextManager[Any]:
        """For the length of the block, in this task or thread: what is traced is below the span."""
        return self._trace.use_span(span, record_exception=False, set_status_on_exception=False)

    def fail(self, span: Span, kind: str, reason: str) -> None:
        span.set_attribute("error.type", kind)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, reason))

    def _attributes(self, kind: str, name: str, group: str) -> Attributes:
        return {
            "messaging.system": SYSTEM,
            "messaging.operation.type": kind,
            "messaging.operation.name": name,
            "messaging.destination.name": group,
            "messaging.client.id": self._client,
        }


class CallSpan:
    """The span of a call. `headers`: its context, for the application."""

    __slots__ = ("_span", "_tracing", "headers")

    def __init__(self, tracing: Tracing, span: Span) -> None:
        self._tracing = tracing
        self._span = span
        self.headers = tracing.headers_of(span)

    def current(self) -> AbstractContextManager[Any]:
        """For the length of the block, in this task or thread: what is traced is below the span."""
        return self._tracing.current(self._span)

    def end(self, verdict: str, reason: str, *, is_done: bool) -> None:
        self._span.set_attribute("lbg.verdict", verdict)
        if not is_done:
            self._tracing.fail(self._span, verdict, reason)
        self._span.end()


def attributes_of(
    *, queue: int, id: str, key: str | None, size: int, attempt: int = 0, redelivered: bool = False
) -> Attributes:
    """Attributes of a message. `attempt` is 0 where it is not called."""
    attributes: Attributes = {
        "messaging.destination.partition.id": str(queue),
        "messaging.message.id": id,
        "messaging.message.body.size": size,
    }
    if key is not None:
        attributes["lbg.key"] = key
    if attempt:
        attributes |= {"lbg.attempt": attempt, "lbg.redelivered": redelivered}
    return attributes


def _provider(service: str, environment: Mapping[str, str]) -> TracerProvider:
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporters = list(_exporters(environment))
    except ImportError as error:
        set_ones = [name for name in (EXPORTERS, *ENDPOINTS) if environment.get(name)]
        raise TracingError(
            f"{' and '.join(set_ones)} is set, and OpenTelemetry is not installed ({error.name}): "
            f"run {install_command('otel')}, or unset it"
        ) from error
    has_name = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    provider = TracerProvider(resource=Resource.create({} if has_name else {"service.name": service}))
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    about = logging.getLogger("opentelemetry")
    about.propagate = False
    about.addHandler(_FewLines(logging.WARNING))
    return provider


def _exporters(environment: Mapping[str, str]) -> Iterator[SpanExporter]:
    names = [name.strip() for name in (environment.get(EXPORTERS) or "otlp").split(",")]
    for name in names:
        if name == "console":
            from opentelemetry.sdk.trace.export import ConsoleSpanExporter

            yield ConsoleSpanExporter(out=sys.stderr)
        elif name == "otlp":
            variable = next((one for one in PROTOCOLS if environment.get(one)), "")
            if variable and environment[variable] != HTTP:
                raise TracingError(
                    f"{variable} is {environment[variable]!r}, but it must be {HTTP}: traces are exported over HTTP"
                )
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            yield OTLPSpanExporter()
        elif name != "none":
            raise TracingError(f"{EXPORTERS} is {name!r}, but it must be otlp, console or none")


class _FewLines(logging.Handler):
    """Logs one record a minute: an exporter whose collector is away logs each attempt."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._next_at = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + QUIET_S
            log.warning("traces are not exported: %s", printable(record.getMessage()))
