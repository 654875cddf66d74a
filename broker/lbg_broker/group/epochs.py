"""Epochs of a publisher: which values of `lbg-publisher` are one publisher started again, and in what order.

A publisher that goes on from a state file sends what it may have sent before under the epoch of then, and all that
follows in an epoch of its own, whose sequences begin at 0 (docs/adr/0047-epochs.md). The header's value says both:

    NAME-RRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRR                          the first epoch: 128 random bits
    NAME-HHHHHHHH.BBBBBBBBBBBBB.RRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRR   a later one

H is the beginning of the first epoch's R, B the microseconds since 1970 at which the epoch began. An incarnation that
is not 32 hexadecimal digits (older publishers had 8) stands for H as a whole. Any other value is a publisher with one
epoch.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_FIRST = re.compile(r"(?P<history>.+-[0-9a-f]{8})[0-9a-f]{24}")
_LATER = re.compile(r"(?P<history>.+-.*)\.(?P<began>[0-9a-f]{13})\.[0-9a-f]{32}")
_ROOT_DIGITS = 8
_FULL_DIGITS = 32


class Epoch(NamedTuple):
    """`history` is the same for all epochs of a publisher; of two of them the one with the later `began_us` counts as
    the later one. `began_us` of the first epoch is 0."""

    history: str
    began_us: int


def epoch_of(publisher: str) -> Epoch:
    """The epoch that a value of `lbg-publisher` names."""
    if (later := _LATER.fullmatch(publisher)) is not None:
        return Epoch(later["history"], int(later["began"], 16))
    first = _FIRST.fullmatch(publisher)
    return Epoch(publisher if first is None else first["history"], 0)


def incarnation_of_epoch(first: str, began_us: int, random: bytes) -> str:
    """The incarnation of an epoch after the first one, whose incarnation was `first`."""
    root = first[:_ROOT_DIGITS] if re.fullmatch(f"[0-9a-f]{{{_FULL_DIGITS}}}", first) else first
    return f"{root}.{began_us:013x}.{random.hex()}"
