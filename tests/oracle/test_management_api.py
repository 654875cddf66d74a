"""The same requests to both management APIs: the same statuses, and the same values in the fields we serve."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pika
import pytest

from lbg_core.amqp.methods import ConnectionClose
from testing.amqp.plain_client import PlainClient
from testing.broker.engines import Engine, Inbox, eventually

Step = tuple[str, str, Any]

QUORUM = {"durable": True, "arguments": {"x-queue-type": "quorum", "x-single-active-consumer": True}}
PATTERNS = {"configure": "^a", "write": "", "read": ".*"}

CONVERSATIONS: dict[str, list[Step]] = {
    "users": [
        ("GET", "/users/{u}", None),
        ("PUT", "/users/{u}", {"password": "secret", "tags": "management, lbg-group-{u}"}),
        ("GET", "/users/{u}", None),
        ("PUT", "/users/{u}", {"password": "other", "tags": ["monitoring"]}),
        ("PUT", "/users/{u}", {"password": "other"}),
        ("PUT", "/users/{u}", {"password_hash": "zzz", "tags": ""}),
        (
            "PUT",
            "/users/{u}",
            {"password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", "tags": ""},
        ),
        ("GET", "/users/{u}", None),
        ("GET", "/users/{u}/permissions", None),
        ("PUT", "/users/{u}", {"tags": ""}),
        ("PUT", "/users/{u}", "no object"),
        ("DELETE", "/users/{u}", None),
        ("DELETE", "/users/{u}", None),
    ],
    "permissions": [
        ("PUT", "/permissions/%2F/{u}", PATTERNS),
        ("PUT", "/users/{u}", {"password": "secret", "tags": ""}),
        ("GET", "/permissions/%2F/{u}", None),
        ("PUT", "/permissions/%2F/{u}", PATTERNS),
        ("PUT", "/permissions/%2F/{u}", PATTERNS),
        ("GET", "/permissions/%2F/{u}", None),
        ("GET", "/users/{u}/permissions", None),
        ("PUT", "/permissions/%2F/{u}", {**PATTERNS, "read": "**"}),
        ("PUT", "/permissions/%2F/{u}", {"read": "x"}),
        ("PUT", "/permissions/none/{u}", PATTERNS),
        ("GET", "/permissions/none/{u}", None),
        ("DELETE", "/permissions/%2F/{u}", None),
        ("DELETE", "/permissions/%2F/{u}", None),
        ("PUT", "/permissions/%2F/{u}", PATTERNS),
        ("DELETE", "/users/{u}", None),
        ("GET", "/permissions/%2F/{u}", None),
    ],
    "exchanges": [
        ("GET", "/exchanges/%2F/{u}", None),
        (
            "PUT",
            "/exchanges/%2F/{u}",
            {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "{u}.unrouted"}},
        ),
        ("GET", "/exchanges/%2F/{u}", None),
        ("PUT", "/exchanges/%2F/{u}", {"type": "fanout", "durable": True}),
        ("PUT", "/exchanges/%2F/{u}", {"type": "no such type"}),
        ("PUT", "/exchanges/%2F/{u}.plain", {}),
        ("GET", "/exchanges/%2F/{u}.plain", None),
        ("PUT", "/exchanges/%2F/amq.{u}", {"type": "topic"}),
        ("GET", "/exchanges/%2F/amq.default", None),
        ("GET", "/exchanges/%2F/amq.topic", None),
        ("DELETE", "/exchanges/%2F/amq.topic", None),
        ("DELETE", "/exchanges/%2F/{u}.plain", None),
        ("DELETE", "/exchanges/%2F/{u}?if-unused=true", None),
        ("DELETE", "/exchanges/%2F/{u}", None),
        ("PUT", "/exchanges/none/{u}", {"type": "topic"}),
    ],
    "queues": [
        ("GET", "/queues/%2F/{u}", None),
        ("PUT", "/queues/%2F/{u}", {"durable": True}),
        ("PUT", "/queues/%2F/{u}", {"durable": True}),
        ("PUT", "/queues/%2F/{u}", {"durable": False}),
        ("PUT", "/queues/%2F/{u}", {"durable": "yes"}),
        ("GET", "/queues/%2F/{u}", None),
        ("GET", "/queues/%2F/{u}/bindings", None),
        ("DELETE", "/queues/%2F/{u}/contents", None),
        ("DELETE", "/queues/%2F/{u}?if-empty=true&if-unused=true", None),
        ("DELETE", "/queues/%2F/{u}", None),
        ("DELETE", "/queues/%2F/{u}/contents", None),
        ("PUT", "/queues/%2F/{u}", QUORUM),
        ("GET", "/queues/%2F/{u}", None),
        ("PUT", "/queues/%2F/{u}", {"durable": True}),
        ("DELETE", "/queues/%2F/{u}", None),
        ("PUT", "/queues/%2F/{u}", {"arguments": {"x-max-length": -1}}),
        ("PUT", "/queues/%2F/{u}", {"arguments": []}),
        ("DELETE", "/queues/%2F/{u}", None),
        ("PUT", "/queues/%2F/amq.{u}", {}),
        ("PUT", "/queues/none/{u}", {}),
        ("GET", "/queues/none", None),
    ],
    "bindings": [
        ("PUT", "/queues/%2F/{u}", {"durable": True}),
        ("PUT", "/exchanges/%2F/{u}", {"type": "topic", "durable": True}),
        ("PUT", "/exchanges/%2F/{u}.2", {"type": "fanout", "durable": True}),
        ("POST", "/bindings/%2F/e/{u}/q/{u}", {"routing_key": "{u}.0.#"}),
        ("POST", "/bindings/%2F/e/{u}/q/{u}", {"routing_key": "{u}.0.#"}),
        ("POST", "/bindings/%2F/e/{u}/q/{u}", {"routing_key": "{u}.2.#", "arguments": {}}),
        ("POST", "/bindings/%2F/e/{u}/q/{u}", {}),
        ("POST", "/bindings/%2F/e/{u}/e/{u}.2", {"routing_key": "a/b~c%d"}),
        ("POST", "/bindings/%2F/e/{u}/q/{u}.none", {}),
        ("POST", "/bindings/%2F/e/{u}.none/q/{u}", {}),
        ("GET", "/bindings/%2F/e/{u}/q/{u}", None),
        ("GET", "/bindings/%2F/e/{u}/e/{u}.2", None),
        ("GET", "/bindings/%2F/e/{u}.none/q/{u}", None),
        ("GET", "/exchanges/%2F/{u}/bindings/source", None),
        ("GET", "/exchanges/%2F/{u}.2/bindings/destination", None),
        ("GET", "/exchanges/%2F/{u}.none/bindings/source", None),
        ("GET", "/queues/%2F/{u}/bindings", None),
        ("GET", "/bindings/%2F/e/{u}/q/{u}/{u}.0.%23", None),
        ("GET", "/bindings/%2F/e/{u}/q/{u}/{u}.0.%2523", None),
        ("GET", "/bindings/%2F/e/{u}/q/{u}/~", None),
        ("GET", "/bindings/%2F/e/{u}/q/{u}/none", None),
        ("DELETE", "/bindings/%2F/e/{u}/q/{u}/{u}.0.%23", None),
        ("DELETE", "/bindings/%2F/e/{u}/q/{u}/{u}.0.%23", None),
        ("GET", "/queues/%2F/{u}/bindings", None),
        ("DELETE", "/queues/%2F/{u}", None),
        ("GET", "/exchanges/%2F/{u}/bindings/source", None),
        ("DELETE", "/exchanges/%2F/{u}", None),
        ("DELETE", "/exchanges/%2F/{u}.2", None),
    ],
    "the broker": [
        ("GET", "/whoami", None),
        ("GET", "/vhosts/%2F", None),
        ("GET", "/vhosts/none", None),
        ("PUT", "/vhosts/%2F", {}),
        ("GET", "/policies/%2F", None),
        ("GET", "/operator-policies", None),
        ("GET", "/policies/%2F/none", None),
        ("DELETE", "/policies/%2F/none", None),
        ("GET", "/health/checks/alarms", None),
        ("GET", "/health/checks/local-alarms", None),
        ("GET", "/health/checks/virtual-hosts", None),
        ("GET", "/health/checks/node-is-quorum-critical", None),
        ("GET", "/aliveness-test/%2F", None),
        ("GET", "/connections/none", None),
        ("DELETE", "/connections/none", None),
        ("GET", "/no/such/path", None),
        ("POST", "/overview", {}),
    ],
}

OURS = (
    "password_hash",
    "hashing_algorithm",
    "cluster_state",
    "node",
    "leader",
    "members",
    "online",
    "error",
    "reason",
    "status",
)
"""Fields whose values are an engine's own: salts, the names of nodes, the words of an error."""


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_both_apis_answer_alike(
    rabbit_engine: Engine, embedded_engine: Engine, unique: str, conversation: str
) -> None:
    for verb, path, body in _filled(CONVERSATIONS[conversation], unique):
        expected_status, expected = rabbit_engine.ask(verb, path, body)
        if (verb, path) == ("GET", "/vhosts/%2F"):
            for count in ("messages", "messages_ready", "messages_unacknowledged"):
                expected.pop(count, None)  # of other tests, which share the node, up to 5 s ago
            if rabbit_engine.is_4:
                assert expected["default_queue_type"] == "classic"
                expected["default_queue_type"] = "undefined"  # the same, in the words of 3.10
        status, answer = embedded_engine.ask(verb, path, body)
        assert status == expected_status, (verb, path, body, answer)
        _compare(_of_this(expected, unique), _of_this(answer, unique), f"{verb} {path}")


def _of_this(listed: Any, unique: str) -> Any:
    """Without what is in virtual hosts of other tests, which stay on a node."""
    if not isinstance(listed, list):
        return listed
    return [one for one in listed if unique in one.get("vhost", unique) or one["vhost"] == "/"]


def test_what_each_tag_may_ask_is_the_same(
    rabbit_engine: Engine, embedded_engine: Engine, unique: str
) -> None:
    paths = [
        *("/whoami", "/overview", "/nodes", "/vhosts", "/vhosts/%2F", "/users", "/users/guest"),
        *(
            "/permissions",
            "/permissions/%2F/guest",
            "/queues",
            "/queues/%2F",
            "/exchanges/%2F",
            "/bindings/%2F",
        ),
        *("/connections", "/channels", "/consumers", "/policies"),
    ]
    for tag in ("", "management", "policymaker", "monitoring", "administrator", "nonsense"):
        answers = []
        for engine in (rabbit_engine, embedded_engine):
            login = engine.add_user(f"{unique}.{tag}", tags=tag, read=".*")
            answers.append({path: engine.ask("GET", path, login=login)[0] for path in paths})
            engine.ask("DELETE", f"/users/{unique}.{tag}")
        assert answers[1] == answers[0], tag


def test_a_login_that_is_missing_or_wrong_is_401(engine: Engine) -> None:
    for login in (None, ("guest", "wrong"), ("nobody", "guest"), ("guest", "")):
        assert engine.ask("GET", "/whoami", login=login)[0] == 401


def test_a_new_password_counts_at_once(engine: Engine, unique: str) -> None:
    login = engine.add_user(unique, tags="management")
    assert engine.ask("GET", "/whoami", login=login)[0] == 200
    engine.ask("PUT", f"/users/{unique}", {"password": "changed", "tags": "management"})
    assert engine.ask("GET", "/whoami", login=login)[0] == 401
    with engine.connected((unique, "changed")):
        pass
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(engine.parameters(login))


def test_a_queue_shows_what_waits_what_is_out_and_who_is_active(engine: Engine, unique: str) -> None:
    with engine.connected() as connection:
        first, second = connection.channel(), connection.channel()
        first.queue_declare(unique, durable=True, arguments={"x-single-active-consumer": True})
        for channel in (first, second):
            channel.basic_qos(prefetch_count=2)
        inbox = Inbox(first, unique, consumer_tag="one")
        Inbox(second, unique, consumer_tag="two")
        for _ in range(5):
            first.basic_publish("", unique, b"hello")
        inbox.wait(2)

        def shown() -> dict[str, Any]:
            connection.process_data_events(0.05)
            return dict(engine.ask("GET", f"/queues/%2F/{unique}")[1])

        def counted() -> bool:  # each of the three is sampled by itself
            queue = shown()
            return (queue.get("messages"), queue.get("consumers"), len(queue["consumer_details"])) == (
                5,
                2,
                2,
            )

        assert eventually(counted)
        queue = shown()
        assert (queue["messages_ready"], queue["messages_unacknowledged"], queue["consumers"]) == (3, 2, 2)
        assert (queue["message_bytes"], queue["message_bytes_ready"]) == (25, 15)
        assert queue["message_bytes_unacknowledged"] == 10
        assert queue["single_active_consumer_tag"] == "one"
        details = {one["consumer_tag"]: one for one in queue["consumer_details"]}
        assert [(details[tag]["active"], details[tag]["activity_status"]) for tag in ("one", "two")] == [
            (True, "single_active"),
            (False, "waiting"),
        ]
        assert details["one"]["prefetch_count"] == 2
        assert details["one"]["ack_required"] is True
        everywhere = engine.ask("GET", "/consumers/%2F")[1]
        assert details["one"]["channel_details"]["user"] == "guest"
        assert sum(one["queue"]["name"] == unique for one in everywhere) == 2
        assert (queue["policy"], queue["operator_policy"], queue["effective_policy_definition"]) == (
            None,
            None,
            {},
        )
        listed = [found for found in engine.ask("GET", "/queues/%2F")[1] if found["name"] == unique]
        assert [found["messages"] for found in listed] == [5]
        assert engine.ask("DELETE", f"/queues/%2F/{unique}?if-empty=true")[0] == 400
        assert engine.ask("DELETE", f"/queues/%2F/{unique}?if-unused=true")[0] == 400
        assert engine.ask("DELETE", f"/queues/%2F/{unique}")[0] == 204


def test_an_operator_can_close_a_connection(engine: Engine) -> None:
    with PlainClient(engine.amqp_port) as client:
        port = client.socket.getsockname()[1]
        name = f"127.0.0.1:{port} -> 127.0.0.1:{engine.amqp_port}"
        assert eventually(lambda: any(one["name"] == name for one in engine.ask("GET", "/connections")[1]))
        status, shown = engine.ask("GET", f"/connections/{quote(name, safe='')}")
        assert (status, shown["user"], shown["vhost"], shown["peer_port"]) == (200, "guest", "/", port)
        assert shown["client_properties"]["capabilities"]["basic.nack"] is True
        assert engine.ask("DELETE", f"/connections/{quote(name, safe='')}")[0] == 204
        close = client.wait(ConnectionClose)
        assert close.reply_code == 320
        assert "Closed via management" in close.reply_text


def test_a_connection_is_shown_with_what_its_client_says_that_it_is(engine: Engine, unique: str) -> None:
    with engine.connected(client_properties={"connection_name": unique}) as connection:

        def products() -> list[str]:
            connection.process_data_events(0.05)
            told = [one["client_properties"] for one in engine.ask("GET", "/connections")[1]]
            return [one["product"] for one in told if one.get("connection_name") == unique]

        assert eventually(lambda: products() == ["Pika Python Client Library"])


def test_columns_and_pages_are_cut_alike(rabbit_engine: Engine, embedded_engine: Engine, unique: str) -> None:
    answers = []
    for engine in (rabbit_engine, embedded_engine):
        for number in range(5):
            engine.ask("PUT", f"/queues/%2F/{unique}.{number}", {"durable": True})
        asked = [
            engine.ask("GET", f"/queues/%2F?page={page}&page_size=2&name={unique}&columns=name,durable")
            for page in (1, 3, 4)
        ]
        for _, page in asked[:2]:
            del page["total_count"]
        answers.append([asked[0], asked[1], asked[2][0]])
        for number in range(5):
            engine.ask("DELETE", f"/queues/%2F/{unique}.{number}")
    assert answers[1] == answers[0]


def test_names_are_chosen_by_pattern_alike(
    rabbit_engine: Engine, embedded_engine: Engine, unique: str
) -> None:
    """As provisioning asks for one group of many: queues and exchanges by pattern, and none where none matches."""
    answers = []
    for engine in (rabbit_engine, embedded_engine):
        names = [f"lbg.{unique}{rest}" for rest in (".q.0", ".q.1", ".config", "-2.q.0")]
        for name in names:
            engine.ask("PUT", f"/queues/%2F/{name}", {"durable": True})
            engine.ask("PUT", f"/exchanges/%2F/{name}", {"type": "topic", "durable": True})
        asked = [
            engine.ask(
                "GET",
                f"/{kind}/%2F?page=1&page_size=500&name={quote(pattern, safe='')}&use_regex=true&columns=name",
            )[1]
            for kind in ("queues", "exchanges")
            for pattern in (
                rf"^lbg\.({unique}){dot}"
                for dot in (r"\.", r"(\.|$)", r"\.q\.", r"-2\.", r"\.nothing", "(-2)?[^a-z]*$")
            )
        ]
        for page in asked:
            del page["total_count"]
        answers.append(asked)
        for name in names:
            engine.ask("DELETE", f"/queues/%2F/{name}")
            engine.ask("DELETE", f"/exchanges/%2F/{name}")
    assert answers[1] == answers[0]
    assert [page["item_count"] for page in answers[0][:3]] == [3, 3, 2]


def _filled(steps: list[Step], unique: str) -> list[Step]:
    return [(verb, path.replace("{u}", unique), _fill(body, unique)) for verb, path, body in steps]


def _fill(value: Any, unique: str) -> Any:
    if isinstance(value, str):
        return value.replace("{u}", unique)
    if isinstance(value, dict):
        return {name: _fill(item, unique) for name, item in value.items()}
    return [_fill(item, unique) for item in value] if isinstance(value, list) else value


def _compare(expected: Any, answer: Any, where: str) -> None:
    """Every field that both have is to be the same; ours may have more or fewer."""
    if expected is None:  # no body, or one that is no JSON
        return
    if isinstance(expected, dict) and isinstance(answer, dict):
        for name in (expected.keys() & answer.keys()) - set(OURS):
            _compare(expected[name], answer[name], f"{where} .{name}")
    elif isinstance(expected, list) and isinstance(answer, list):
        assert len(answer) == len(expected), where
        for left, right in zip(_sorted(expected), _sorted(answer), strict=True):
            _compare(left, right, where)
    else:
        assert answer == expected, where


def _sorted(items: list[Any]) -> list[Any]:
    def key(item: Any) -> str:
        return str(item.get("properties_key", item)) if isinstance(item, dict) else str(item)

    return sorted(items, key=key)
