"""Replies that come in any pieces, and what is refused because it is none."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.app.http_client import HEAD_MAX_BYTES, Reply, ReplyError, ReplyReader

LENGTH = b"HTTP/1.1 200 OK\r\ncontent-LENGTH:  5 \r\nRetry-After: 3\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: Chunked\r\n\r\n"
    b"4;why=not\r\nhell\r\n1\r\no\r\n0\r\nX-Trailer: 1\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + LENGTH
NO_CONTENT = b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"
WHOLE = {
    LENGTH: Reply(200, b"hello", "3"),
    CHUNKED: Reply(503, b"hello", None),
    INTERIM: Reply(200, b"hello", "3"),
    NO_CONTENT: Reply(204, b"", None),
    b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n": Reply(200, b"", None),
    b"HTTP/1.1 200\r\nContent-Length: 0, 0\r\n\r\n".replace(b"0, 0", b"0"): Reply(200, b"", None),
}


@given(reply=st.sampled_from(list(WHOLE)), cuts=st.lists(st.integers(0, 200)))
def test_a_reply_is_read_the_same_in_whatever_pieces_it_comes(reply: bytes, cuts: list[int]) -> None:
    reader = ReplyReader(100)
    edges = sorted({0, len(reply), *(cut for cut in cuts if cut < len(reply))})
    pieces = [reply[start:end] for start, end in itertools.pairwise(edges)]
    found = [reader.receive(piece) for piece in pieces]
    assert found[-1] == WHOLE[reply]
    assert found[:-1] == [None] * (len(pieces) - 1)
    assert reader.reusable


@pytest.mark.parametrize(
    ("reply", "is_reusable"),
    [
        (LENGTH, True),
        (LENGTH.replace(b"Retry-After: 3", b"Connection: Keep-Alive"), True),
        (LENGTH.replace(b"Retry-After: 3", b"Connection: Close"), False),
        (LENGTH.replace(b"HTTP/1.1", b"HTTP/1.0"), False),
        (
            LENGTH.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Retry-After: 3", b"Connection: keep-alive"),
            True,
        ),
        (LENGTH + b"HTTP/1.1 200 OK", False),
    ],
)
def test_a_connection_has_another_reply_only_where_nothing_speaks_against_it(
    reply: bytes, is_reusable: bool
) -> None:
    reader = ReplyReader(100)
    found = reader.receive(reply)
    assert found is not None
    assert found.body == b"hello"
    assert reader.reusable is is_reusable


def test_a_reply_without_a_length_ends_with_its_connection() -> None:
    reader = ReplyReader(100)
    assert reader.receive(b"HTTP/1.1 500 Oops\r\n\r\nhel") is None
    assert reader.receive(b"lo") is None
    assert reader.ended() == Reply(500, b"hello", None)
    assert not reader.reusable


@pytest.mark.parametrize("reply", [LENGTH, CHUNKED, b"HTTP/1.1 200 OK\r\n\r\nhello"])
def test_what_is_longer_than_the_limit_is_cut_and_its_connection_is_not_used_again(reply: bytes) -> None:
    reader = ReplyReader(3)
    found = reader.receive(reply)
    assert found is not None
    assert found.body == b"hel"
    assert found.is_cut
    assert not reader.reusable


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "cannot be read as HTTP"),
        (b"HTTP/2 200\r\n\r\n", "cannot be read as HTTP"),
        (b"HTTP/1.1 099 No\r\n\r\n", "not one of HTTP: 099"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "switches the protocol"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * HEAD_MAX_BYTES, "more than"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "cannot be read"),
        (b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\n", "cannot be read"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n", "cannot be read"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "cannot be read"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "transfer encoding"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", "cannot be read"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n", "cannot be read"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", "cannot be read"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhello\r\n", "cannot be read"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"5" * 5000, "cannot be read"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * HEAD_MAX_BYTES,
            "more than",
        ),
    ],
)
def test_what_is_no_reply_is_refused(reply: bytes, why: str) -> None:
    with pytest.raises(ReplyError, match=why):
        ReplyReader(100).receive(reply)


@pytest.mark.parametrize(
    ("reply", "why"),
    [(b"", "before the reply"), (LENGTH[:-1], "middle"), (CHUNKED[:-1], "middle"), (INTERIM[:30], "middle")],
)
def test_a_connection_that_ends_too_early_is_no_reply(reply: bytes, why: str) -> None:
    reader = ReplyReader(100)
    assert reader.receive(reply) is None
    with pytest.raises(ReplyError, match=why):
        reader.ended()
