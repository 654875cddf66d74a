"""Published messages: a function of the seed.
A message is named by its publisher and its position in the input."""

from __future__ import annotations

import gzip
import random
from array import array
from pathlib import Path

KEY = "k"


def keys_of(seed: int, publisher: int, messages: int, keys: int) -> array[int]:
    """The number of each message's key, unevenly used, as sub-streams are: of 500, the first takes 1 in 22."""
    chance = random.Random(f"{seed} {publisher}").random
    return array("I", (int(keys * chance() ** 2) for _ in range(messages)))


def write_input(path: Path, keys: array[int], *, body_bytes: int) -> None:
    """A message a line, as gzip'd JSON lines of at least `body_bytes`."""
    with gzip.open(path, "wt", compresslevel=1) as file:
        for position, key in enumerate(keys):
            head = f'{{"n":{position},"key":"{KEY}{key}","pad":"'
            file.write(f'{head}{"x" * (body_bytes - len(head) - 2)}"}}\n')


def position_in(body: bytes) -> int:
    """The position that a body tells."""
    return int(body[5 : body.index(b",")])


def publisher_name(number: int) -> str:
    return f"p{number}"


def publisher_number(publisher: str) -> int:
    """From the value of `lbg-publisher`: name and incarnation."""
    return int(publisher.partition("-")[0][1:])


def key_number(key: str) -> int:
    return int(key[len(KEY) :])
