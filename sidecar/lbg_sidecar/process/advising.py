"""What to do about an error that keeps the member out of its group, in the words of the sidecar's settings."""

from __future__ import annotations

from lbg_broker.client import (
    AccessRefused,
    AuthenticationError,
    ConnectError,
    ConnectRefused,
    CredentialsUnreadable,
    TlsError,
)

_NOT_ALLOWED = (
    530  # AMQP 0-9-1, section 1.2: what RabbitMQ says of a virtual host that is not there or not allowed
)

_ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (AuthenticationError, "correct LBG_USERNAME or LBG_PASSWORD_FILE, or create the user at the broker"),
    (CredentialsUnreadable, "correct LBG_USERNAME_FILE or LBG_PASSWORD_FILE, or mount the Secret there"),
    (TlsError, "LBG_CAFILE must hold the authority that signed the certificate, for the host of LBG_BROKER"),
    (AccessRefused, "give the user the group's permissions: `lbg group create` makes a user that has them"),
)


def advised(error: Exception) -> str:
    """One line: what, where, and what to do."""
    return f"{error}; {advice}" if (advice := _advice(error)) else str(error)


def _advice(error: Exception) -> str:
    for kind, advice in _ADVICE:
        if isinstance(error, kind):
            return advice
    if isinstance(error, ConnectRefused):
        if error.reply_code == _NOT_ALLOWED:
            return "create the virtual host and let the user use it, or correct the path of LBG_BROKER"
        return ""
    if isinstance(error, ConnectError):
        return "is the broker up, and is LBG_BROKER its address?"
    return ""
