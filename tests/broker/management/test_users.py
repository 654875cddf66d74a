"""Users, tags and permission patterns: RabbitMQ's «Access Control»."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest

from lbg_broker.core.permissions import (
    PERMISSIONS,
    Authority,
    Grant,
    LoginRefused,
    PatternError,
    User,
    Users,
)
from lbg_core.passwords import hash_algorithm, hash_password


def users_with(*, configure: str = "", write: str = "", read: str = "") -> Users:
    grant = Grant("ada", "/", configure, write, read)
    return Users([User("ada", hash_password("secret"))], [grant])


def test_the_right_password_logs_in_and_a_wrong_one_does_not() -> None:
    users = users_with()
    assert users.log_in("ada", "secret", loopback=False) == users.get("ada")
    assert users.log_in("ada", "secret", loopback=False) == users.get("ada")
    assert isinstance(users.log_in("ada", "Secret", loopback=False), LoginRefused)
    assert isinstance(users.log_in("bob", "secret", loopback=False), LoginRefused)


def test_a_changed_password_takes_effect_although_the_old_one_had_been_proven() -> None:
    users = users_with()
    users.log_in("ada", "secret", loopback=True)
    users.put(User("ada", hash_password("new")))
    assert isinstance(users.log_in("ada", "secret", loopback=True), LoginRefused)
    assert isinstance(users.log_in("ada", "new", loopback=True), User)


def test_a_proven_password_stays_so_when_others_change_and_not_when_the_user_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An administrator makes hundreds of users, and each of its requests is a login: that hash takes 12 ms."""
    users, hashed = users_with(), []
    others = User("bob", hash_password("b"))

    def counted(password: str, salt: bytes | None = None) -> str:
        hashed.append(password)
        return hash_password(password, salt)

    monkeypatch.setattr("lbg_core.passwords.hash_password", counted)
    users.log_in("ada", "secret", loopback=True)
    users.put(others)
    users.grant(Grant("bob", "/", "", "", ""))
    users.drop("bob")
    users.log_in("ada", "secret", loopback=True)
    assert hashed == ["secret"]
    ada = users.get("ada")
    assert ada is not None
    users.drop("ada")
    assert isinstance(users.log_in("ada", "secret", loopback=True), LoginRefused)
    users.put(ada)
    assert users.log_in("ada", "secret", loopback=True) == ada
    assert hashed[-1] == "secret"
    assert len(hashed) == 3


def test_a_user_without_a_password_cannot_log_in_with_an_empty_one() -> None:
    users = Users([User("ada", ""), User("bob", hash_password(""))])
    assert isinstance(users.log_in("ada", "", loopback=True), LoginRefused)
    assert isinstance(users.log_in("bob", "", loopback=True), LoginRefused)


def test_guest_is_let_in_from_loopback_only() -> None:
    users = Users([User("guest", hash_password("guest"), ("administrator",))])
    assert isinstance(users.log_in("guest", "guest", loopback=True), User)
    assert isinstance(users.log_in("guest", "guest", loopback=False), LoginRefused)


def test_the_same_password_is_hashed_differently_each_time() -> None:
    assert hash_password("secret") != hash_password("secret")
    assert hash_algorithm(hash_password("secret")) == "scrypt"


def test_a_password_hash_exported_from_rabbitmq_logs_in() -> None:
    salt = bytes([0x90, 0x8D, 0xC6, 0x0A])  # the example of RabbitMQ's «Passwords» guide
    exported = base64.b64encode(salt + hashlib.sha256(salt + b"test12").digest()).decode()
    assert exported == "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    users = Users([User("ada", exported)])
    assert isinstance(users.log_in("ada", "test12", loopback=True), User)
    assert isinstance(users.log_in("ada", "test13", loopback=True), LoginRefused)


@pytest.mark.parametrize("text", ["", "not base64!", base64.b64encode(b"short").decode()])
def test_what_no_known_algorithm_made_is_not_a_password_hash(text: str) -> None:
    assert hash_algorithm(text) is None


def test_a_password_never_shows_in_a_representation() -> None:
    user = User("ada", hash_password("secret"))
    assert user.password_hash not in repr(user)


@pytest.mark.parametrize(
    ("pattern", "name", "allowed"),
    [
        (".*", "anything", True),
        (".*", "", True),
        ("orders", "lbg.orders.q.0", True),  # unanchored
        ("^orders", "lbg.orders.q.0", False),
        (r"^lbg\.orders\.q\.\d+$", "lbg.orders.q.12", True),
        (r"^lbg\.orders\.q\.\d+$", "lbg.orders.q.12x", False),
        ("", "orders", False),
        ("", "", False),  # the default exchange is asked for as amq.default
        ("^$", "", False),
        ("^amq\\.default$", "", True),
        ("^amq\\.", "", True),
    ],
)
def test_a_pattern_matches_as_rabbitmq_matches_it(pattern: str, name: str, allowed: bool) -> None:
    assert users_with(write=pattern).can("ada", "/", "write", name) is allowed


def test_each_access_has_a_pattern_of_its_own() -> None:
    users = users_with(configure="^c", write="^w", read="^r")
    granted = {
        access: [name for name in "cwr" if users.can("ada", "/", access, name)] for access in PERMISSIONS
    }
    assert granted == {"configure": ["c"], "write": ["w"], "read": ["r"]}


def test_a_user_without_permission_in_a_host_may_not_enter_it() -> None:
    users = users_with(configure=".*", write=".*", read=".*")
    assert users.can_enter("ada", "/")
    assert not users.can_enter("ada", "other")
    assert not users.can("ada", "other", "read", "q")
    assert not users.can("bob", "/", "read", "q")


def test_a_remembered_answer_does_not_outlive_a_change() -> None:
    users = users_with(read=".*")
    assert users.can("ada", "/", "read", "q")
    users.grant(Grant("ada", "/", "", "", "^other$"))
    assert not users.can("ada", "/", "read", "q")
    users.grant(Grant("ada", "/", "", "", "q"))
    assert users.can("ada", "/", "read", "q")
    assert users.revoke("ada", "/")
    assert not users.can("ada", "/", "read", "q")
    assert not users.revoke("ada", "/")


def test_dropping_a_user_drops_its_permissions() -> None:
    users = users_with(read=".*")
    users.grant(Grant("ada", "other", "", "", ".*"))
    assert users.drop("ada")
    assert not users.can_enter("ada", "/")
    assert not users.can_enter("ada", "other")
    assert users.all_grants() == []
    assert not users.drop("ada")


def test_a_pattern_that_is_not_a_regular_expression_is_refused_by_name() -> None:
    with pytest.raises(PatternError, match=r"write: '\*\*'"):
        Grant("ada", "/", ".*", "**", ".*")


def test_users_and_grants_survive_as_json_rows() -> None:
    user = User("ada", hash_password("secret"), ("management", "monitoring"))
    grant = Grant("ada", "/", "^a", "^b", "")
    assert User.from_row(json.loads(json.dumps(user.to_row()))) == user
    assert Grant.from_row(json.loads(json.dumps(grant.to_row()))) == grant


def test_tags_say_who_may_manage_and_who_administers() -> None:
    assert not User("ada", "").may_manage
    assert not User("ada", "", ("impersonator",)).may_manage
    assert User("ada", "", ("management",)).may_manage
    assert not User("ada", "", ("management",)).is_administrator
    assert User("ada", "", ("monitoring",)).may_monitor
    assert User("ada", "", ("administrator",)).may_manage


def test_every_change_starts_a_new_generation_of_answers() -> None:
    users: Authority = Users([User("ada", hash_password("secret"))])
    assert isinstance(users, Users)
    seen = [users.generation]
    for change in (
        lambda: users.put(User("bob", "")),
        lambda: users.grant(Grant("bob", "/")),
        lambda: users.revoke("bob", "/"),
        lambda: users.drop("bob"),
    ):
        change()
        seen.append(users.generation)
    assert seen == sorted(set(seen))
