from __future__ import annotations

import json
import runpy
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group import HASH_FUNCTIONS, SpecError, hash_of, queue_of
from lbg_core.group.hashing import java, murmur2, murmur2_of_bytes
from testing import ROOT

DOCS = ROOT / "docs"
COUNTS = st.integers(1, 65_536)


def test_the_published_vectors_are_what_the_functions_give() -> None:
    made: Any = runpy.run_path(str(DOCS / "hash_vectors.py"))

    assert (DOCS / "hash-vectors.json").read_text() == made["document"]()


def test_the_published_vectors_can_be_checked_without_this_package() -> None:
    document = json.loads((DOCS / "hash-vectors.json").read_text())
    crc32 = [vector for vector in document["vectors"] if vector["function"] == "crc32"]

    assert {vector["function"] for vector in document["vectors"]} == set(HASH_FUNCTIONS)
    for vector in crc32:
        whole = zlib.crc32(vector["key"].encode())
        assert vector["hash"] == [whole % count for count in document["hash_counts"]]


@pytest.mark.parametrize(
    ("key", "hash_code"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99_162_322),
        ("Hello, World!", 1_498_789_909),
        ("polygenelubricants", -(2**31)),
        ("🙂", 1_772_965),
        ("a\ud800", 31 * 97 + 0xD800),
    ],
)
def test_java_is_the_absolute_value_of_string_hash_code(key: str, hash_code: int) -> None:
    assert java(key) == abs(hash_code)


def test_java_agrees_with_the_published_expression_where_abs_alone_would_overflow() -> None:
    # In Java the absolute value of the least int is negative; "Sticky Load Balancing" takes the remainder first.
    assert hash_of("polygenelubricants", 100, "java") == 48


@given(st.text(st.characters(codec=None)), COUNTS)
def test_java_agrees_with_its_definition_over_utf_16_units(key: str, hash_count: int) -> None:
    units = key.encode("utf-16-be", "surrogatepass")
    code = 0
    for at in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[at : at + 2])) % 2**32
    signed = code - 2**32 if code >= 2**31 else code
    truncated = (
        abs(signed) % hash_count * (1 if signed >= 0 else -1)
    )  # Java's remainder has the dividend's sign

    assert hash_of(key, hash_count, "java") == abs(truncated)


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_murmur2_agrees_with_kafkas_own_test_vectors(key: str, signed: int) -> None:
    assert murmur2_of_bytes(key.encode()) == signed % 2**32
    assert murmur2(key) == signed & 0x7FFFFFFF


@pytest.mark.parametrize(
    ("key", "hash_"), [("0", 0), ("257", 57), ("-1", 99), ("-100", 0), ("+7", 7), ("007", 7)]
)
def test_modulo_takes_integers_and_never_gives_a_negative_hash(key: str, hash_: int) -> None:
    assert hash_of(key, 100, "modulo") == hash_


@pytest.mark.parametrize(
    "key", ["", "N14228", "1.5", " 1", "1 ", "1_0", "--1", "0x1", "\u0661", "1\n", "9" * 4001]
)
def test_modulo_refuses_every_other_key_and_says_why(key: str) -> None:
    with pytest.raises(SpecError, match="integer in decimal digits") as caught:
        hash_of(key, 100, "modulo")
    assert (caught.value.field, caught.value.value) == ("key", key)


@pytest.mark.parametrize("function", ["crc32", "murmur2"])
def test_a_key_that_has_no_utf_8_is_refused(function: str) -> None:
    with pytest.raises(SpecError, match="surrogates"):
        hash_of("\ud800", 100, function)


def test_an_unknown_function_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match="'md5': must be one of crc32, java, murmur2, modulo"):
        hash_of("a", 100, "md5")


@given(st.text(), COUNTS, st.sampled_from(["crc32", "java", "murmur2"]))
def test_a_hash_is_in_range_and_the_same_every_time(key: str, hash_count: int, function: str) -> None:
    hash_ = hash_of(key, hash_count, function)

    assert 0 <= hash_ < hash_count
    assert hash_of(key, hash_count, function) == hash_


def test_crc32_is_the_default() -> None:
    assert hash_of("N14228", 100) == zlib.crc32(b"N14228") % 100


def test_hashes_are_striped_over_the_queues() -> None:
    assert [queue_of(hash_, 4) for hash_ in range(6)] == [0, 1, 2, 3, 0, 1]
