"""Conversations with the management API that RabbitMQ and the embedded broker must answer alike."""

from __future__ import annotations

import secrets
from typing import Any
from urllib.parse import quote

from testing.broker.engines import Engine

Step = tuple[str, str, Any] | tuple[str, str, Any, str]
"""Verb, path, body, and the user who asks (with the password of `_user`), by default `guest`. Of what others than
`guest` are answered, the status alone counts. `{u}` is a name that no other conversation uses."""
Answer = tuple[int, Any]

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


def _user(tag: str) -> list[Step]:
    name, rights = f"{{u}}.{tag}", {"configure": "", "write": "", "read": ".*"}
    return [
        ("PUT", f"/users/{name}", {"password": PASSWORD, "tags": tag}),
        ("PUT", f"/permissions/%2F/{name}", rights),
        *(("GET", path, None, name) for path in FOR_TAGS),
        ("DELETE", f"/users/{name}", None),
    ]


PASSWORD = "secret"
FOR_TAGS = [
    *("/whoami", "/overview", "/nodes", "/vhosts", "/vhosts/%2F", "/users", "/users/guest", "/permissions"),
    *("/permissions/%2F/guest", "/queues", "/queues/%2F", "/exchanges/%2F", "/bindings/%2F"),
    *("/connections", "/channels", "/consumers", "/policies"),
]
for _tag in ("", "management", "policymaker", "monitoring", "administrator", "nonsense"):
    CONVERSATIONS[f"rights of the tag {_tag or 'none'}"] = _user(_tag)

_PAGED = [f"/queues/%2F/{{u}}.{number}" for number in range(5)]
CONVERSATIONS["columns and pages"] = [
    *(("PUT", path, {"durable": True}) for path in _PAGED),
    *(
        ("GET", f"/queues/%2F?page={page}&page_size=2&name={{u}}&columns=name,durable", None)
        for page in (1, 3, 4)
    ),
    *(("DELETE", path, None) for path in _PAGED),
]

_OF_GROUPS = [f"%2F/lbg.{{u}}{rest}" for rest in (".q.0", ".q.1", ".config", "-2.q.0")]
_PATTERNS = [
    quote(rf"^lbg\.({{u}}){rest}", safe="{}")
    for rest in (r"\.", r"(\.|$)", r"\.q\.", r"-2\.", r"\.nothing", "(-2)?[^a-z]*$")
]
_PAGE = "page=1&page_size=500&use_regex=true&columns=name"
CONVERSATIONS["names by pattern, as provisioning asks for one group of many"] = [
    *(("PUT", f"/queues/{path}", {"durable": True}) for path in _OF_GROUPS),
    *(("PUT", f"/exchanges/{path}", {"type": "topic", "durable": True}) for path in _OF_GROUPS),
    *(
        ("GET", f"/{kind}/%2F?{_PAGE}&name={pattern}", None)
        for kind in ("queues", "exchanges")
        for pattern in _PATTERNS
    ),
    *(("DELETE", f"/queues/{path}", None) for path in _OF_GROUPS),
    *(("DELETE", f"/exchanges/{path}", None) for path in _OF_GROUPS),
]

_COUNTED = ("messages", "messages_ready", "messages_unacknowledged", "recv_oct", "send_oct")
VARIABLE = {
    *("password_hash", "hashing_algorithm", "cluster_state", "node", "leader", "members", "online"),
    *("error", "reason", "status", "description", "default_queue_type", "user_who_performed_action"),
    *("total_count", "garbage_collection", "message_stats", "incoming", "deliveries", "outgoing"),
    *(*_COUNTED, *(f"{name}_details" for name in _COUNTED)),
}
"""Fields whose values are an engine's own or another test's: salts, names of nodes, words, counts of a whole node."""


def converse(engine: Engine, steps: list[Step]) -> list[Answer]:
    """Answers of the engine to each step: the status, and the body without what differs from run to run."""
    answers: list[Answer] = []
    unique = f"t{secrets.token_hex(4)}"
    for step in steps:
        verb, path, body, *by = _replaced(step, "{u}", unique)
        if by:
            answers.append((engine.ask(verb, path, body, login=(by[0], PASSWORD))[0], None))
            continue
        status, answer = engine.ask(verb, path, body)
        answers.append((status, _settled(_replaced(answer, unique, "{u}"))))
    return answers


def _replaced(value: Any, old: str, new: str) -> Any:
    """The value with another text in place of one, in all its texts."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, dict):
        return {name: _replaced(item, old, new) for name, item in value.items()}
    return [_replaced(item, old, new) for item in value] if isinstance(value, list | tuple) else value


def _settled(value: Any) -> Any:
    """An answer without its variable fields, and lists in an order."""
    if isinstance(value, dict):
        return {name: _settled(item) for name, item in sorted(value.items()) if name not in VARIABLE}
    if isinstance(value, list):  # tests leave virtual hosts on a node
        ours = [_settled(one) for one in value if not isinstance(one, dict) or one.get("vhost", "/") == "/"]
        return sorted(
            ours, key=lambda one: str(one.get("properties_key", one) if isinstance(one, dict) else one)
        )
    return value


def require_alike(expected: Any, answer: Any, where: object) -> None:
    """Raises AssertionError where a field that both have is different; each may have others."""
    if expected is None:  # no body, or one that is no JSON
        return
    if isinstance(expected, dict) and isinstance(answer, dict):
        for name in expected.keys() & answer.keys():
            require_alike(expected[name], answer[name], f"{where} .{name}")
    elif isinstance(expected, list) and isinstance(answer, list):
        assert len(answer) == len(expected), where
        for left, right in zip(expected, answer, strict=True):
            require_alike(left, right, where)
    else:
        assert answer == expected, where
