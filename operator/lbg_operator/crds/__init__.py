"""Custom resources as frozen dataclasses: parsed once, valid from then on. No I/O.

The API server has checked an object against its schema and filled the defaults in before anybody reads it; what is
checked here is what a schema cannot say.
"""

from __future__ import annotations

from lbg_operator.crds.broker import BrokerManifest, Embedded, RabbitMQ, has_authority
from lbg_operator.crds.consumer import App, Batch, Consumer, Journal, Sidecar, Storage, bytes_in, quantity_of
from lbg_operator.crds.group import BrokerRef, GroupManifest, Metadata
from lbg_operator.crds.scaling import Floor, Scaling, Schedule, floor_at

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
