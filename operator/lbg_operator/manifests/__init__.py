"""Custom resources as frozen dataclasses: parsed once, valid from then on. No I/O here.

The API server has checked an object against its schema and filled the defaults in before anybody reads it; what is
checked here is what a schema cannot say.
"""

from .broker import BrokerManifest, Embedded, RabbitMQ, has_authority
from .consumer import App, Batch, Consumer, Journal, Sidecar, Storage
from .group import BrokerRef, GroupManifest
from .metadata import Metadata
from .quantities import bytes_in, quantity_of
from .scaling import Floor, Scaling, floor_at
from .schedule import Schedule

__all__ = [
    "App",
    "Batch",
    "BrokerManifest",
    "BrokerRef",
    "Consumer",
    "Embedded",
    "Floor",
    "GroupManifest",
    "Journal",
    "Metadata",
    "RabbitMQ",
    "Scaling",
    "Schedule",
    "Sidecar",
    "Storage",
    "bytes_in",
    "floor_at",
    "has_authority",
    "quantity_of",
]
