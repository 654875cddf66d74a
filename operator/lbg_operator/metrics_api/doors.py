"""The TLS side of the server: what it shows and whom it knows can change while it runs.

An SSLContext takes new certificates and authorities, and forgets none. So each change makes another one, and a
handshake takes the newest: OpenSSL lets the callback for the server's name put another context in place.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import Any

from ..certificates import Certificate
from .callers import Callers


@dataclass(frozen=True, slots=True)
class Standing:
    """What the server shows and goes by. `callers` is None while nobody knows them: then nobody is one."""

    certificate: Certificate
    token_key: bytes
    callers: Callers | None


class _Context(ssl.SSLContext):
    """Knows what authority it judges clients by."""

    authority_pem = ""


class Door:
    """Closed until there is something to show."""

    def __init__(self) -> None:
        self.standing: Standing | None = None
        self._context: _Context | None = None
        self.listening = _bare()
        """The context to listen with."""
        self.listening.sni_callback = self._newest

    def stand_on(self, standing: Standing) -> None:
        """For every handshake from now on. Raises ssl.SSLError for what OpenSSL cannot read."""
        if standing != self.standing:
            self._context, self.standing = _context_of(standing), standing

    def admits(self, connection: ssl.SSLObject) -> bool:
        """Whether requests on `connection` come from the API server.

        A connection outlives the authority that it was let in by: whoever was, has to come again.
        """
        callers = self.standing.callers if self.standing is not None else None
        former = connection.context
        if callers is None or not isinstance(former, _Context):
            return False
        return former.authority_pem == callers.authority_pem and callers.include(
            connection.getpeercert() or {}
        )

    def _newest(self, connection: ssl.SSLObject, _name: str | None, _initial: ssl.SSLContext) -> int | None:
        if self._context is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._context
        return None


def _bare() -> _Context:
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    # Nothing is resumed: a client is judged at each handshake, by whom is trusted now.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    # A client without a certificate is told so by an answer in HTTP: it may be KEDA, or a health check.
    context.verify_mode = ssl.CERT_OPTIONAL
    # Any certificate of the list is an authority, as for the API server itself.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _context_of(standing: Standing) -> _Context:
    context = _bare()
    # load_cert_chain reads files only; the key is to be on no disk, and the operator's root is read-only.
    with open(os.memfd_create("certificate"), "wb") as together:
        together.write(standing.certificate.key_pem + standing.certificate.certificate_pem)
        together.flush()
        context.load_cert_chain(f"/proc/self/fd/{together.fileno()}")
    if standing.callers is not None:
        context.load_verify_locations(cadata=standing.callers.authority_pem)
        context.authority_pem = standing.callers.authority_pem
    return context


def shown(transport: Any) -> ssl.SSLObject:
    """The TLS side of a connection's transport."""
    found: ssl.SSLObject = transport.get_extra_info("ssl_object")
    return found
