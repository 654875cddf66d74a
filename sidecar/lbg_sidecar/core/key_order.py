"""Order of processing: of a key, a message is out of order if it is processed for the first time after a later one.

The latest message of each key is kept, of the keys that were used last. Of those that are forgotten the highest number
is kept: above it a message is in order, below it that is unknown.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Protocol

from lbg_core.group.sequences import MessageIdentity

KEYS_MAX = 65_536
KEY_MAX_CHARS = 1_000
"""The order of longer keys is unknown."""

INVERSION_S = 3_600.0
"""The id of the last message out of order is reported for so long."""

ID_MAX_CHARS = 200


class History:
    """All epochs of a publisher, of one hash. `evicted`: beginning of the epoch and number of the latest message of the
    keys that were forgotten."""

    __slots__ = ("evicted",)

    def __init__(self) -> None:
        self.evicted = (0, -1)


class Stream(Protocol):
    """`is_established`: its messages come here alone."""

    history: History
    began_us: int

    @property
    def is_established(self) -> bool: ...


class KeyOrder:
    def __init__(self) -> None:
        self.keys_max = KEYS_MAX
        self.out_of_order = self.unknown = 0
        self.out_of_order_id = ""
        self._inverted_at = float("-inf")
        self._keys: OrderedDict[tuple[History, str], list[Any]] = OrderedDict()
        """By history and key: stream and number of the latest message that was finished."""

    def processed(self, key: str, stream: Stream, identity: MessageIdentity, now: float) -> None:
        """A message that nobody had processed before."""
        number = identity[2]
        place = stream.history, key
        last = self._keys.get(place)
        if last is None:
            if len(key) > KEY_MAX_CHARS or (stream.began_us, number) < stream.history.evicted:
                self.unknown += 1
                return  # the next one of the key is looked at in the same way
            if len(self._keys) >= self.keys_max:
                (history, _), (idle, highest) = self._keys.popitem(last=False)
                history.evicted = max(history.evicted, (idle.began_us, highest))
            self._keys[place] = [stream, number]
        elif number > last[1] and last[0] is stream:
            last[1] = number
            self._keys.move_to_end(place)
        elif (stream.began_us, number) >= (last[0].began_us, last[1]):
            last[:] = stream, number
        elif stream.is_established or stream is last[0]:
            self.out_of_order += 1
            self.out_of_order_id, self._inverted_at = id_of(identity), now
        else:
            self.unknown += 1

    def tick(self, now: float) -> None:
        if now - self._inverted_at > INVERSION_S:
            self.out_of_order_id = ""


def id_of(identity: MessageIdentity) -> str:
    return "-".join(map(str, identity))[:ID_MAX_CHARS]
