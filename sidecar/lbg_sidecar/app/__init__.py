"""The ways to reach the application: each takes calls, makes them, and reports how every one of them ended."""

from .batching import BatchChannel
from .channel import CONCURRENCY, AppChannel, Calls, ask_again, concurrency_of, limit_of, withdraw
from .commanding import CommandChannel
from .gathering import BatchSettings
from .handling import AsyncHandler, SyncHandler, handler_channel
from .probing import HealthRules
from .pushing import PushChannel
from .stream_connection import StreamSettings
from .streaming import StreamChannel

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
    "ask_again",
    "concurrency_of",
    "handler_channel",
    "limit_of",
    "withdraw",
]
