"""Position of a session, requested and reported over each channel, and of each message."""

from __future__ import annotations

import json

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from lbg_broker.core.queue_types.session_headers import end_of_session, numbered
from lbg_core.amqp import BasicProperties
from lbg_core.client import Delivery
from lbg_sidecar import Message
from lbg_sidecar.app.channel import parse_reported
from lbg_sidecar.app.cloudevents import attributes, batch_item, message_json
from lbg_sidecar.app.health import HealthRules
from lbg_sidecar.app.http_push import PushChannel
from lbg_sidecar.app.websocket_protocol import read_hello
from lbg_sidecar.core.delivery import Attachment
from lbg_sidecar.errors import StreamError
from lbg_sidecar.message import session_stamp_of
from testing.app.application_channel import Offering, delivered, offering_to
from testing.waiting import until

texts = st.text(max_size=10) | st.just("\x0dx-session-seql")


def delivery(header: bytes) -> Delivery:
    made = Delivery.__new__(Delivery)
    made.header = header
    return made


@given(
    content_type=st.none() | texts,
    encoding=st.none() | texts,
    headers=st.none() | st.dictionaries(texts.filter(bool), texts),
    sequence=st.integers(1, 2**62),
)
def test_the_number_that_the_broker_writes_is_read(
    content_type: str | None, encoding: str | None, headers: dict[str, str] | None, sequence: int
) -> None:
    properties = BasicProperties(content_type=content_type, content_encoding=encoding, headers=headers)
    assert session_stamp_of(delivery(numbered(properties.encode(), sequence))) == (sequence, False)


def test_the_end_of_a_session_is_told_from_a_message() -> None:
    assert session_stamp_of(delivery(end_of_session(7))) == (7, True)
    quoting = BasicProperties(headers={"about": "x-session-end"}).encode()
    assert session_stamp_of(delivery(numbered(quoting, 8))) == (8, False)


def test_a_message_says_its_session_and_number_in_every_form() -> None:
    attachment = Attachment(0, 1, session='s"ü')
    message = Message(delivered(4, attachment=attachment, headers={"x-session-seq": 345}), "g")
    assert (message.session, message.sequence) == ('s"ü', 345)
    told = json.loads(message_json(message))
    assert (told["session"], told["sequence"]) == ('s"ü', 345)
    assert attributes(message)["lbgsequence"] == "345"
    event = json.loads(batch_item(message))
    assert (event["lbgsession"], event["lbgsequence"], event["sequence"]) == ('s"ü', "345", "4".zfill(19))


def test_in_other_modes_nothing_is_said_of_sessions() -> None:
    message = Message(delivered(4, headers={"x-session-seq": 345}), "g")
    assert (message.session, message.sequence) == (None, None)
    assert not {"session", "sequence"} & json.loads(message_json(message)).keys()
    assert "lbgsession" not in attributes(message)


def test_an_application_knows_streams_or_a_number_or_both() -> None:
    assert parse_reported([]) == ((), None)
    assert parse_reported({"committed": 0}) == ((), (0, None))
    assert parse_reported({"processed": [["p", 1, [[0, 2]]]], "committed": 5}) == (
        (("p", 1, ((0, 2),)),),
        (5, None),
    )
    assert parse_reported({"committed": [5, "e"]}) == ((), (5, "e"))
    assert parse_reported({"committed": [5, None]}) == ((), (5, None))
    for wrong in (
        {"committed": [5]},
        {"committed": [5, 6]},
        {"committed": ["5", "e"]},
        {"committed": [-5, "e"]},
        {"committed": [5, "half of a character: \ud800"]},
    ):
        with pytest.raises(ValueError, match="or it and its epoch"):
            parse_reported(wrong)
    for wrong in ({}, {"committed": -1}, {"committed": "5"}, {"comitted": 5}, {"processed": {}}, 5):
        with pytest.raises(ValueError, match=r"is not|is in|not a"):
            parse_reported(wrong)


def test_a_hello_may_say_how_far_the_session_is() -> None:
    assert read_hello('{"hello": {"credit": 1, "committed": 345}}').committed == (345, None)
    assert read_hello('{"hello": {"credit": 1, "committed": [345, "e"]}}').committed == (345, "e")
    assert read_hello('{"hello": {"credit": 1}}').committed is None
    with pytest.raises(StreamError, match="not a number from 0"):
        read_hello('{"hello": {"credit": 1, "committed": true}}')


async def test_over_http_it_is_asked_by_name_before_it_counts_as_ready_and_when_it_is_asked_again() -> None:
    asked: list[str] = []

    async def positions(request: web.Request) -> web.Response:
        asked.append(request.query["session"])
        return web.json_response({"committed": 300 + len(asked)})

    async def take(request: web.Request) -> web.Response:
        return web.Response()

    rules = HealthRules(interval_s=0.02, positions_path="/positions")
    offering = Offering()
    offering.session = "a b&c"
    application = web.Application()
    application.add_routes([web.get("/positions", positions), web.post("/app", take)])
    async with (
        TestServer(application) as server,
        offering_to(PushChannel(str(server.make_url("/app")), concurrency=1, health=rules), offering),
    ):
        await until(lambda: offering.is_ready)
        assert offering.commits == [301]
        assert offering.channel is not None
        offering.channel.request_position()
        assert not offering.is_ready
        await until(lambda: offering.is_ready)
    assert asked == ["a b&c"] * 2
    assert offering.commits == [301, 302]
