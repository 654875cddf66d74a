"""Errors of the client.

::

    ClientError
    ├── SettingsError             an address or a setting is wrong (also a ValueError)
    │   └── AddressConflict       … each alone is right, and they do not go together
    ├── ConnectError              one attempt to connect failed
    │   ├── NoListener            nobody listens at the address
    │   ├── TlsError              the certificate, or the TLS handshake
    │   ├── AuthenticationError   user or password refused
    │   ├── CredentialsUnreadable the source of user and password failed
    │   └── ConnectRefused        the broker closed with another code (no such virtual host, …)
    ├── ConnectionLost            the connection is gone; what was unconfirmed is unknown
    │   └── ConnectionClosed      … because one side closed it; carries the reply code
    ├── ChannelClosed             the channel is gone, the connection lives; carries the reply code
    │   ├── AccessRefused         403
    │   ├── NotFound              404
    │   ├── QueueDown             404 too: the queue exists, and the node that has it is down
    │   ├── ResourceLocked        405
    │   └── PreconditionFailed    406
    ├── Nacked                    the broker refused a published message
    └── Unroutable                a mandatory message reached no queue; carries what was returned

`retryable`: the same call may succeed later without a change. No message ever
holds a password.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from lbg_core.client.messages import Returned


class ClientError(Exception):
    """Base of every error of this package."""

    retryable: ClassVar[bool] = False


class SettingsError(ClientError, ValueError):
    """An address or a setting is invalid."""


class AddressConflict(SettingsError):
    """Addresses of one broker, or an address and files, that do not go together."""


class ConnectError(ClientError):
    """One attempt failed: no listener, no answer in time, or no AMQP."""

    retryable = True


class NoListener(ConnectError):
    """Nobody listens at the address: perhaps no broker runs."""


class TlsError(ConnectError):
    """The certificate or the TLS handshake was refused, by either side."""

    retryable = False


class AuthenticationError(ConnectError):
    """The broker refuses the user or the password (403)."""

    retryable = False


class CredentialsUnreadable(ConnectError):
    """The file or the function that holds user and password gave none."""

    retryable = False


class ConnectRefused(ConnectError):
    """The broker closed the connection while it was being opened."""

    def __init__(self, message: str, reply_code: int, reply_text: str) -> None:
        super().__init__(message)
        self.reply_code = reply_code
        self.reply_text = reply_text


class ConnectionLost(ClientError):
    """The connection is gone. Whether unconfirmed messages arrived is not known."""

    retryable = True


class ConnectionClosed(ConnectionLost):
    """The connection was closed by one side, with a reply code (200: in order)."""

    def __init__(self, reply_code: int, reply_text: str, *, by_broker: bool) -> None:
        closer = "the broker" if by_broker else "us"
        super().__init__(f"connection closed by {closer}: {reply_code} {reply_text}")
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.by_broker = by_broker


class ChannelClosed(ClientError):
    """The channel is gone; the connection lives. `reply_code` 200: closed by us."""

    def __init__(self, reply_code: int, reply_text: str) -> None:
        super().__init__(f"channel closed: {reply_code} {reply_text}")
        self.reply_code = reply_code
        self.reply_text = reply_text


class AccessRefused(ChannelClosed):
    """403."""


class NotFound(ChannelClosed):
    """404."""


class QueueDown(ChannelClosed):
    """404 from RabbitMQ for a queue that is there, on a node that is not: "home node … is down or inaccessible"."""

    retryable = True


class ResourceLocked(ChannelClosed):
    """405: an exclusive queue of another connection."""

    retryable = True


class PreconditionFailed(ChannelClosed):
    """406: it exists with other arguments, is in use, is not empty; or an unknown delivery tag was acked."""


class Nacked(ClientError):
    """The broker did not take a message: its queue is full, or failed."""

    retryable = True

    def __init__(self, delivery_tag: int) -> None:
        super().__init__(f"the broker refused message {delivery_tag} of this channel")
        self.delivery_tag = delivery_tag


class Unroutable(ClientError):
    """A mandatory message reached no queue."""

    def __init__(self, returned: Returned) -> None:
        super().__init__(
            f"{returned.reply_code} {returned.reply_text}: exchange {returned.exchange!r}, "
            f"routing key {returned.routing_key!r}"
        )
        self.returned = returned


_BY_CODE: dict[int, type[ChannelClosed]] = {
    403: AccessRefused,
    404: NotFound,
    405: ResourceLocked,
    406: PreconditionFailed,
}


def channel_closed(reply_code: int, reply_text: str) -> ChannelClosed:
    """The error for a reply code and the broker's text."""
    if reply_code == 404 and "is down or inaccessible" in reply_text:
        return QueueDown(reply_code, reply_text)
    return _BY_CODE.get(reply_code, ChannelClosed)(reply_code, reply_text)
