"""Channels to the application: each takes calls, makes them, and reports how every one of them ended."""

from __future__ import annotations

from lbg_sidecar.app.callable import AsyncHandler, SyncHandler, handler_channel
from lbg_sidecar.app.channel import CONCURRENCY, AppChannel, Calls
from lbg_sidecar.app.command import CommandChannel
from lbg_sidecar.app.health import HealthRules
from lbg_sidecar.app.http_push import BatchChannel, BatchSettings, PushChannel
from lbg_sidecar.app.websocket import StreamChannel, StreamSettings

__all__ = [
    "CONCURRENCY",
    "AppChannel",
    "AsyncHandler",
    "BatchChannel",
    "BatchSettings",
    "Calls",
    "CommandChannel",
    "HealthRules",
    "PushChannel",
    "StreamChannel",
    "StreamSettings",
    "SyncHandler",
    "handler_channel",
]
