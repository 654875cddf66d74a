"""Every method of AMQP 0-9-1 and of RabbitMQ's extensions, one class each, and `decode_method`.

Arguments are in the order of the specification, in snake case (``no-wait`` is `nowait`, ``global`` is
`global_`), all with defaults; the reserved ones are left out.
"""

from struct import Struct

from lbg_broker.amqp.errors import DecodeError, PeerError
from lbg_broker.amqp.methods import connection, messaging, topology
from lbg_broker.amqp.methods.base import METHODS, Method
from lbg_broker.amqp.methods.connection import *  # noqa: F403 (its names are its __all__)
from lbg_broker.amqp.methods.messaging import *  # noqa: F403 (its names are its __all__)
from lbg_broker.amqp.methods.topology import *  # noqa: F403 (its names are its __all__)
from lbg_broker.amqp.replies import ReplyCode

__all__ = ["Method", "decode_method"]
__all__ += connection.__all__
__all__ += messaging.__all__
__all__ += topology.__all__

_NUMBER = Struct(">I")


def decode_method(payload: bytes, errors: str = "surrogateescape") -> Method:
    """The method in a method frame's payload.

    Raises `DecodeError` (502) when the arguments are malformed, `PeerError` (540) for an unknown number.
    """
    if len(payload) < 4:
        raise DecodeError("a method frame is too short to hold a method")
    (number,) = _NUMBER.unpack_from(payload)
    cls = METHODS.get(number)
    if cls is None:
        raise PeerError(ReplyCode.NOT_IMPLEMENTED, f"unknown method {number >> 16}.{number & 0xFFFF}")
    return cls.decode_arguments(payload, 4, errors)
