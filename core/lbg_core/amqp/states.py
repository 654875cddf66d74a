"""States of a connection and of a channel, and every step between them. A step that is missing is illegal.

The states are of the conversation, so one table serves both roles: the client's connection is in `TUNING` from
the moment it has read connection.tune, the server's from the moment it has written it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from lbg_core.amqp.methods import connection as m
from lbg_core.amqp.methods.base import Method, Role


class ConnectionState(Enum):
    """State of a connection."""

    HEADER = auto()  # no bytes in either direction
    STARTING = auto()  # the header was sent: connection.start is next
    ANSWERING = auto()  # start-ok is next
    AUTHENTICATING = auto()  # secure or tune is next
    CHALLENGED = auto()  # secure-ok is next
    TUNING = auto()  # tune-ok is next
    TUNED = auto()  # open is next
    OPENING = auto()  # open-ok is next
    OPEN = auto()
    CLOSING = auto()  # we sent close and await close-ok
    PEER_CLOSED = auto()  # the peer sent close: we owe a close-ok
    CLOSED = auto()


_S = ConnectionState

CONNECTION: Final[dict[tuple[ConnectionState, type[Method]], ConnectionState]] = {
    (_S.STARTING, m.ConnectionStart): _S.ANSWERING,
    (_S.ANSWERING, m.ConnectionStartOk): _S.AUTHENTICATING,
    (_S.AUTHENTICATING, m.ConnectionSecure): _S.CHALLENGED,
    (_S.CHALLENGED, m.ConnectionSecureOk): _S.AUTHENTICATING,
    (_S.AUTHENTICATING, m.ConnectionTune): _S.TUNING,
    (_S.TUNING, m.ConnectionTuneOk): _S.TUNED,
    (_S.TUNED, m.ConnectionOpen): _S.OPENING,
    (_S.OPENING, m.ConnectionOpenOk): _S.OPEN,
    (_S.OPEN, m.ConnectionBlocked): _S.OPEN,
    (_S.OPEN, m.ConnectionUnblocked): _S.OPEN,
    (_S.OPEN, m.ConnectionUpdateSecret): _S.OPEN,
    (_S.OPEN, m.ConnectionUpdateSecretOk): _S.OPEN,
}
"""A method either side sends by its role, and the state after it. Close and close-ok depend on who sent them."""

CONNECTION_CLOSABLE: Final = frozenset(
    (
        _S.STARTING,
        _S.ANSWERING,
        _S.AUTHENTICATING,
        _S.CHALLENGED,
        _S.TUNING,
        _S.TUNED,
        _S.OPENING,
        _S.OPEN,
    )
)
"""States in which either side may send connection.close."""


class ChannelState(Enum):
    """State of a channel."""

    CLOSED = auto()
    OPENING = auto()  # open was sent, open-ok was not
    OPEN = auto()
    CLOSING = auto()  # we sent close: everything but close-ok and close is discarded
    PEER_CLOSED = auto()  # the peer sent close: we owe a close-ok


class ChannelInput(Enum):
    """Event that changes the state of a channel."""

    OPEN = auto()
    OPEN_OK = auto()
    CLOSE = auto()
    CLOSE_OK = auto()
    OTHER = auto()


def input_of(method: type[Method]) -> ChannelInput:
    """Input that a method is to the state of its channel."""
    return _INPUTS.get(method, ChannelInput.OTHER)


_INPUTS: Final[dict[type[Method], ChannelInput]] = {
    m.ChannelOpen: ChannelInput.OPEN,
    m.ChannelOpenOk: ChannelInput.OPEN_OK,
    m.ChannelClose: ChannelInput.CLOSE,
    m.ChannelCloseOk: ChannelInput.CLOSE_OK,
}

_C, _I = ChannelState, ChannelInput
_ChannelTable = dict[tuple[ChannelState, ChannelInput], ChannelState]

_CLOSING: Final[_ChannelTable] = {
    (_C.PEER_CLOSED, _I.CLOSE_OK): _C.CLOSED,
    # One read may hold a request and the close behind it: the answer to the request is still written.
    (_C.PEER_CLOSED, _I.OPEN_OK): _C.PEER_CLOSED,
    (_C.PEER_CLOSED, _I.OTHER): _C.PEER_CLOSED,
}

CHANNEL_SENT: Final[dict[Role, _ChannelTable]] = {
    Role.CLIENT: {
        (_C.CLOSED, _I.OPEN): _C.OPENING,
        (_C.OPENING, _I.CLOSE): _C.CLOSING,
        (_C.OPEN, _I.CLOSE): _C.CLOSING,
        (_C.OPEN, _I.OTHER): _C.OPEN,
        **_CLOSING,
    },
    Role.SERVER: {
        (_C.OPENING, _I.OPEN_OK): _C.OPEN,
        (_C.OPENING, _I.CLOSE): _C.CLOSING,
        (_C.OPEN, _I.CLOSE): _C.CLOSING,
        (_C.OPEN, _I.OTHER): _C.OPEN,
        **_CLOSING,
    },
}

CHANNEL_RECEIVED: Final[dict[Role, _ChannelTable]] = {
    Role.CLIENT: {
        (_C.OPENING, _I.OPEN_OK): _C.OPEN,
        (_C.OPENING, _I.CLOSE): _C.PEER_CLOSED,
        (_C.OPEN, _I.CLOSE): _C.PEER_CLOSED,
        (_C.OPEN, _I.OTHER): _C.OPEN,
        (_C.CLOSING, _I.CLOSE_OK): _C.CLOSED,
    },
    Role.SERVER: {
        (_C.CLOSED, _I.OPEN): _C.OPENING,
        # A client may write ahead of open-ok.
        (_C.OPENING, _I.CLOSE): _C.PEER_CLOSED,
        (_C.OPENING, _I.OTHER): _C.OPENING,
        (_C.OPEN, _I.CLOSE): _C.PEER_CLOSED,
        (_C.OPEN, _I.OTHER): _C.OPEN,
        (_C.CLOSING, _I.CLOSE_OK): _C.CLOSED,
    },
}
