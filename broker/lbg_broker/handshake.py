"""From the protocol header to connection.open-ok (AMQP 0-9-1 section 2.2.4), and login."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from lbg_broker.core.permissions import User, Users
from lbg_core.amqp import Connection as Wire
from lbg_core.amqp import (
    ConnectionState,
    DecodeError,
    HeaderEvent,
    MethodEvent,
    ReplyCode,
    Table,
    decode_table,
)
from lbg_core.amqp.methods import (
    ConnectionClose,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)


@dataclass(slots=True, frozen=True)
class Admitted:
    """The client is in; the open-ok is in the output."""

    user: str
    vhost: str
    client_properties: Table


@dataclass(slots=True, frozen=True)
class Login:
    """The client's login is to be checked; `logged_in` or `refuse_login` is next. None: it has no name and password."""

    credentials: tuple[str, str] | None = field(repr=False)


@dataclass(slots=True, frozen=True)
class Refused:
    """The client is not let in, for this reason (for the log).

    `reports_refusal`: a connection.close is in the output; otherwise the socket is closed.
    """

    reason: str
    reports_refusal: bool


def server_properties() -> dict[str, Any]:
    """Properties that the broker announces; the capabilities are RabbitMQ's, and two of ours."""
    try:
        ours = version("lbgroup")
    except PackageNotFoundError:
        ours = "unknown"
    return {
        "product": "LBG",
        "version": ours,
        "platform": f"Python {platform.python_version()}",
        "copyright": "The LBG authors",
        "information": "The embedded broker of LBG: one node, no high availability",
        "capabilities": {
            "publisher_confirms": True,
            "exchange_exchange_bindings": True,
            "basic.nack": True,
            "consumer_cancel_notify": True,
            "connection.blocked": True,
            "authentication_failure_close": True,
            "per_consumer_qos": True,
            "direct_reply_to": False,
            "consumer_priorities": False,
            "lbg.ordered_refusal": True,
            "lbg.revoke": True,
            "lbg.capacity": True,
            "lbg.prefetch_size": True,
        },
    }


_PROPERTIES: Final = server_properties()

MAX_MESSAGE_SIZE: Final = "max_message_size"
"""Beside them: the largest body in bytes, so that a publisher need not lose its channel to learn it."""


class Handshake:
    """One connection's way in. Feed it the events of channel 0 until it returns a verdict."""

    def __init__(self, wire: Wire, users: Users, *, vhosts: Mapping[str, object]) -> None:
        self._wire = wire
        self._properties = {**_PROPERTIES, MAX_MESSAGE_SIZE: wire.max_body_bytes}
        self._users = users
        self._vhosts = vhosts
        self._client_properties: Table = {}
        self._mechanism = ""
        self._user = ""

    def handle(self, event: HeaderEvent | MethodEvent) -> Login | Admitted | Refused | None:
        """Answer one event. None: the client is to speak next."""
        if isinstance(event, HeaderEvent):
            self._wire.send(
                0,
                ConnectionStart(
                    server_properties=self._properties, mechanisms=b"PLAIN AMQPLAIN", locales=b"en_US"
                ),
            )
            return None
        match event.method:
            case ConnectionStartOk() as start:
                self._client_properties = start.client_properties
                self._mechanism = start.mechanism
                return Login(_credentials(start.mechanism, start.response))
            case ConnectionTuneOk():
                return None
            case ConnectionOpen() as opening:
                return self._enter(opening.virtual_host)
            case ConnectionSecureOk():  # no mechanism here has a second challenge; the wire refuses one
                return None
        return None

    def logged_in(self, user: User) -> None:
        """The login is right: the client goes on."""
        self._user = user.name
        wire = self._wire
        wire.send(0, ConnectionTune(wire.channel_max, wire.frame_max_bytes, wire.heartbeat_s))

    def refuse_login(self, reason: str) -> Refused:
        """RabbitMQ's answer. Other clients treat a close here as a protocol error, so they
        only get a closed socket («Authentication Failure Notifications»)."""
        capabilities = self._client_properties.get("capabilities")
        reports_refusal = (
            isinstance(capabilities, Mapping) and capabilities.get("authentication_failure_close") is True
        )
        if reports_refusal:
            text = (
                f"ACCESS_REFUSED - Login was refused using authentication mechanism {self._mechanism}. "
                "For details see the broker logfile."
            )
            self._wire.send(0, ConnectionClose(ReplyCode.ACCESS_REFUSED, text[:255]))
        return Refused(reason, reports_refusal)

    def _enter(self, vhost: str) -> Admitted | Refused:
        if vhost not in self._vhosts:
            return self._refuse_vhost(f"NOT_ALLOWED - vhost {vhost} not found")
        if not self._users.can_enter(self._user, vhost):
            return self._refuse_vhost(
                f"NOT_ALLOWED - access to vhost '{vhost}' refused for user '{self._user}'"
            )
        self._wire.send(0, ConnectionOpenOk())
        return Admitted(self._user, vhost, self._client_properties)

    def _refuse_vhost(self, text: str) -> Refused:
        if self._wire.state is ConnectionState.OPENING:
            self._wire.send(0, ConnectionClose(ReplyCode.NOT_ALLOWED, text[:255], 10, 40))
        return Refused(text, True)


def _credentials(mechanism: str, response: bytes) -> tuple[str, str] | None:
    """User and password out of a SASL response: PLAIN (RFC 4616), or AMQPLAIN, a table without its length."""
    try:
        if mechanism == "PLAIN":
            _, user, password = response.split(b"\0")
            return user.decode(), password.decode()
        if mechanism == "AMQPLAIN":
            table = decode_table(len(response).to_bytes(4, "big") + response)
            user_name, secret = table.get("LOGIN"), table.get("PASSWORD")
            if isinstance(user_name, str) and isinstance(secret, str):
                return user_name, secret
    except (ValueError, DecodeError):
        pass
    return None
