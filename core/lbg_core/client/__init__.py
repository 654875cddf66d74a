"""An asyncio client of AMQP 0-9-1 brokers, on `lbg_core.amqp`.

::

    connection = await connect("amqp://guest:guest@localhost/", name="example")
    channel = await connection.open_channel()
    await channel.queue_declare("work", durable=True)
    acks = AckBatcher(channel)
    await channel.consume("work", on_deliveries, prefetch_count=200)

Built on `asyncio.Protocol`: what one read brings is handed over as lists, what one loop turn produces is one
write. The errors are drawn in `errors`.
"""

from __future__ import annotations

from lbg_core.amqp import BasicProperties
from lbg_core.client.ack_window import AckBatcher
from lbg_core.client.backoff import Backoff
from lbg_core.client.channel import Channel, OnCancelled, OnConfirm, OnDeliveries, OnReturn, OnRevoked
from lbg_core.client.confirms import ConfirmingPublisher
from lbg_core.client.connect import ReconnectLoop, connect, connect_any, reconnect_loop
from lbg_core.client.connection import ClientConnection
from lbg_core.client.errors import (
    AccessRefused,
    AddressConflict,
    AuthenticationError,
    ChannelClosed,
    ClientError,
    ConnectError,
    ConnectionClosed,
    ConnectionLost,
    ConnectRefused,
    CredentialsUnreadable,
    Nacked,
    NotFound,
    PreconditionFailed,
    QueueDown,
    ResourceLocked,
    SettingsError,
    TlsError,
    Unroutable,
)
from lbg_core.client.messages import BodyExcerpt, Delivery, GotMessage, Returned
from lbg_core.client.settings import (
    BrokerAddress,
    ConnectionSettings,
    CredentialFiles,
    Credentials,
    CredentialsSource,
    TlsSettings,
    split_urls,
)

__all__ = [
    "AccessRefused",
    "AckBatcher",
    "AddressConflict",
    "AuthenticationError",
    "Backoff",
    "BasicProperties",
    "BodyExcerpt",
    "BrokerAddress",
    "Channel",
    "ChannelClosed",
    "ClientConnection",
    "ClientError",
    "ConfirmingPublisher",
    "ConnectError",
    "ConnectRefused",
    "ConnectionClosed",
    "ConnectionLost",
    "ConnectionSettings",
    "CredentialFiles",
    "Credentials",
    "CredentialsSource",
    "CredentialsUnreadable",
    "Delivery",
    "GotMessage",
    "Nacked",
    "NotFound",
    "OnCancelled",
    "OnConfirm",
    "OnDeliveries",
    "OnReturn",
    "OnRevoked",
    "PreconditionFailed",
    "QueueDown",
    "ReconnectLoop",
    "ResourceLocked",
    "Returned",
    "SettingsError",
    "TlsError",
    "TlsSettings",
    "Unroutable",
    "connect",
    "connect_any",
    "reconnect_loop",
    "split_urls",
]
