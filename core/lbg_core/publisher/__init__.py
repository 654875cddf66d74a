"""Publishing to a group: in order, without loss, each message stamped with its key, hash and sequence.

`send_window` (with `stamper`) is a pure machine; `sender`, `channel_session` and `publisher` are its asyncio shell on
`lbg_core.client`. `input` reads rows from files and publishes them; with `state_file` a publisher resumes after a
kill.
"""

from __future__ import annotations

from lbg_core.publisher import events
from lbg_core.publisher.errors import (
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
from lbg_core.publisher.events import PublisherEvent
from lbg_core.publisher.input.feed import publish_rows
from lbg_core.publisher.input.rows import RowOptions, without_rows
from lbg_core.publisher.input.source import open_source
from lbg_core.publisher.publisher import GroupPublisher, PublishingReport
from lbg_core.publisher.resume import Identity
from lbg_core.publisher.send_window import PublishingSettings
from lbg_core.publisher.stamper import MessageOptions

__all__ = [
    "BadRow",
    "BrokerRefused",
    "GroupClosed",
    "GroupGone",
    "GroupPublisher",
    "Identity",
    "InputChanged",
    "InputError",
    "MessageOptions",
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
