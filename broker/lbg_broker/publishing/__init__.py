"""Publishing to a group: in order, without loss, each message stamped with its key, hash and sequence.

`ordering` (with `line` and `stamping`) is a pure machine; `publisher` is its asyncio shell on
`lbg_broker.client`; `reading` turns files into rows and `feeding` publishes them; `state_file` lets a
publisher go on after its own death.
"""

from . import events
from .errors import (
    BadRow,
    BrokerRefused,
    GroupClosed,
    GroupGone,
    InputChanged,
    InputError,
    MessageTooLarge,
    PublisherClosed,
    PublishingError,
    SizeRefused,
    StateError,
    Unroutable,
)
from .events import PublisherEvent
from .feeding import publish_rows
from .identity import Identity
from .message import Extra
from .publisher import GroupPublisher
from .reading import without_rows
from .report import PublishingReport
from .rows import RowOptions
from .settings import PublishingSettings
from .sources import open_source

__all__ = [
    "BadRow",
    "BrokerRefused",
    "Extra",
    "GroupClosed",
    "GroupGone",
    "GroupPublisher",
    "Identity",
    "InputChanged",
    "InputError",
    "MessageTooLarge",
    "PublisherClosed",
    "PublisherEvent",
    "PublishingError",
    "PublishingReport",
    "PublishingSettings",
    "RowOptions",
    "SizeRefused",
    "StateError",
    "Unroutable",
    "events",
    "open_source",
    "publish_rows",
    "without_rows",
]
