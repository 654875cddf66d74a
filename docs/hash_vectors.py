"""Makes docs/hash-vectors.json: `python docs/hash_vectors.py > docs/hash-vectors.json`.

A test compares the file with what this makes, so neither a function nor the file can change unnoticed.
"""

from __future__ import annotations

import json
import sys

from lbg_core.group import HASH_FUNCTIONS, SpecError, hash_of

HASH_COUNTS = (1, 4, 7, 16, 100, 1024, 65_536)

KEYS = (
    "",
    "a",
    "ab",
    "abc",
    "abcd",
    "hello",
    "foobar",
    "polygenelubricants",  # Java's hashCode is the most negative int
    "a-little-bit-long-string",
    "a-little-bit-longer-string",
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
    "N14228",
    "N668DN",
    "7b8be135-ac05-44bf-b5ed-d544400a211d/f0ead9f2-bf5b-4432-a79e-13d6e8ccc617",
    "Straße",
    "naïve café",
    "ключ",
    "キー",
    "안녕하세요",
    "🙂",
    "e\u0301",  # not normalised: another key than é
    "\u00e9",
    "a\u0000b",
    "0",
    "1",
    "-1",
    "+1",
    "007",
    "21",
    "100",
    "-100",
    "123456789",
    "18446744073709551616",
    "1.5",
    " 1",
    "\u0661",  # a digit, but not an ASCII one
)

ABOUT = (
    "hash[i] is the hash of key for hash_counts[i], or null where the function refuses the key. Keys are JSON strings:"
    " unescape them first. crc32: CRC-32 of the UTF-8 (zlib). java: Math.abs(key.hashCode() % hashCount). murmur2:"
    " Kafka's default partitioner, (murmur2(UTF-8) & 0x7fffffff) % hashCount. modulo: the decimal integer itself,"
    " remainder never negative."
)


def hashes(key: str, function: str) -> list[int] | None:
    try:
        return [hash_of(key, hash_count, function) for hash_count in HASH_COUNTS]
    except SpecError:
        return None


def document() -> str:
    """The whole file: one vector a line."""
    vectors = (
        {"function": function, "key": key, "hash": hashes(key, function)}
        for function in HASH_FUNCTIONS
        for key in KEYS
    )
    lines = ",\n".join("    " + json.dumps(vector) for vector in vectors)
    about, counts = json.dumps(ABOUT), json.dumps(HASH_COUNTS)
    return f'{{\n  "about": {about},\n  "hash_counts": {counts},\n  "vectors": [\n{lines}\n  ]\n}}\n'


if __name__ == "__main__":
    sys.stdout.write(document())
