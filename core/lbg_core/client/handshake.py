"""Handshake of a connection, from connection.start to open-ok (AMQP 0-9-1 section 2.2.4)."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata

from lbg_core.amqp import Connection, FieldValue, Method, Table
from lbg_core.amqp.methods import (
    ConnectionClose,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
)
from lbg_core.client.errors import AuthenticationError, ConnectError, ConnectRefused
from lbg_core.client.settings import ConnectionSettings


def client_properties(name: str, more: Mapping[str, FieldValue] | None = None) -> dict[str, FieldValue]:
    """Properties that the client announces. `name` is what an operator sees in the list of connections."""
    return {
        "product": "LBG",
        "version": metadata.version("lbgroup"),
        "platform": f"Python {platform.python_version()}",
        "connection_name": name,
        **(more or {}),
        "capabilities": {
            "authentication_failure_close": True,
            "basic.nack": True,
            "connection.blocked": True,
            "consumer_cancel_notify": True,
            "exchange_exchange_bindings": True,
            "publisher_confirms": True,
            # The embedded broker then refuses a queue's later messages too, until confirm.select comes again.
            "lbg.ordered_refusal": True,
            # The embedded broker then sends basic.revoke before it gives deliveries to another consumer.
            "lbg.revoke": True,
            # The embedded broker then accepts a prefetch size, as AMQP has it and RabbitMQ does not.
            "lbg.prefetch_size": True,
        },
    }


class Handshake:
    """Feeds on the broker's methods, answers through the machine, and is `done` at open-ok."""

    def __init__(self, machine: Connection, settings: ConnectionSettings, properties: Table) -> None:
        self._machine = machine
        self._settings = settings
        self._properties = properties
        self.done = False
        self.server_properties: Table = {}
        self._awaits_verdict = False

    def on_method(self, method: Method) -> None:
        """Answer one method. Raises `ConnectError`."""
        match method:
            case ConnectionStart():
                self._answer_start(method)
            case ConnectionTune():
                self._awaits_verdict = False
                self._machine.send(0, self._machine.tune_ok(method))
                self._machine.send(0, ConnectionOpen(self._settings.vhost))
            case ConnectionOpenOk():
                self.done = True
            case ConnectionSecure():
                raise AuthenticationError(f"{self._where}: the broker requires more than {self._mechanism}")
            case ConnectionClose(reply_code=403):
                raise AuthenticationError(f"{self._where}: {self._clean(method.reply_text)}")
            case ConnectionClose():
                text = self._clean(method.reply_text)
                raise ConnectRefused(f"{self._where}: {method.reply_code} {text}", method.reply_code, text)
            case _:
                raise ConnectError(f"{self._where}: {method.NAME} came before the connection was open")

    def explain_loss(self, reason: str) -> ConnectError:
        """The error for a socket that closed in the middle."""
        if self._awaits_verdict and not self._reports_refusals:
            return AuthenticationError(f"{self._where}: closed after the login was sent ({reason})")
        return ConnectError(f"{self._where}: closed before the connection was open ({reason})")

    def _answer_start(self, start: ConnectionStart) -> None:
        self.server_properties = start.server_properties
        if self._mechanism.encode() not in start.mechanisms.split():
            offered = start.mechanisms.decode(errors="replace")
            raise ConnectError(f"{self._where}: the broker offers {offered}, not {self._mechanism}")
        settings = self._settings
        response = b""
        if self._mechanism == "PLAIN":
            response = f"\0{settings.username}\0{settings.password}".encode()
        self._machine.send(0, ConnectionStartOk(self._properties, self._mechanism, response, "en_US"))
        self._awaits_verdict = True

    @property
    def _reports_refusals(self) -> bool:
        """True if the broker refuses a login with connection.close (RabbitMQ: authentication_failure_close). Another
        just closes the socket, as if it had been killed at that moment."""
        return self.has("authentication_failure_close")

    def has(self, capability: str) -> bool:
        """True if the broker announces it."""
        capabilities = self.server_properties.get("capabilities")
        return isinstance(capabilities, Mapping) and capabilities.get(capability) is True

    @property
    def _mechanism(self) -> str:
        return self._settings.mechanism

    @property
    def _where(self) -> str:
        return self._settings.address

    def _clean(self, text: str) -> str:
        password = self._settings.password
        return text.replace(password, "…") if len(password) > 3 and password != "guest" else text
