"""Custom resources as frozen dataclasses: parsed once, valid from then on. No I/O here.

The API server has checked an object against its schema and filled the defaults in before anybody reads it; what is
checked here is what a schema cannot say.
"""

from .broker import BrokerManifest, Embedded, RabbitMQ
from .group import App, Batch, BrokerRef, Consumer, GroupManifest, Scaling, Sidecar, Storage
from .metadata import Metadata
from .quantities import bytes_in, quantity_of

__all__ = [
    "App",
    "Batch",
    "BrokerManifest",
    "BrokerRef",
    "Consumer",
    "Embedded",
    "GroupManifest",
    "Metadata",
    "RabbitMQ",
    "Scaling",
    "Sidecar",
    "Storage",
    "bytes_in",
    "quantity_of",
]
