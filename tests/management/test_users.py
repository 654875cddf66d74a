"""Users, tags and permission patterns: RabbitMQ's «Access Control»."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest

from lbg_broker.server.core.users import (
    Access,
    Authority,
    PatternError,
    Permission,
    Refusal,
    User,
    hash_algorithm,
    hash_password,
)


def authority_with(*, configure: str = "", write: str = "", read: str = "") -> Authority:
    permission = Permission("ada", "/", configure, write, read)
    return Authority([User("ada", hash_password("secret"))], [permission])


def test_the_right_password_logs_in_and_a_wrong_one_does_not() -> None:
    authority = authority_with()
    assert authority.authenticate("ada", "secret", loopback=False) == authority.user("ada")
    assert authority.authenticate("ada", "secret", loopback=False) == authority.user("ada")
    assert isinstance(authority.authenticate("ada", "Secret", loopback=False), Refusal)
    assert isinstance(authority.authenticate("bob", "secret", loopback=False), Refusal)


def test_a_changed_password_takes_effect_although_the_old_one_had_been_proven() -> None:
    authority = authority_with()
    authority.authenticate("ada", "secret", loopback=True)
    authority.put_user(User("ada", hash_password("new")))
    assert isinstance(authority.authenticate("ada", "secret", loopback=True), Refusal)
    assert isinstance(authority.authenticate("ada", "new", loopback=True), User)


def test_a_user_without_a_password_cannot_log_in_with_an_empty_one() -> None:
    authority = Authority([User("ada", ""), User("bob", hash_password(""))])
    assert isinstance(authority.authenticate("ada", "", loopback=True), Refusal)
    assert isinstance(authority.authenticate("bob", "", loopback=True), Refusal)


def test_guest_is_let_in_from_loopback_only() -> None:
    authority = Authority([User("guest", hash_password("guest"), ("administrator",))])
    assert isinstance(authority.authenticate("guest", "guest", loopback=True), User)
    assert isinstance(authority.authenticate("guest", "guest", loopback=False), Refusal)


def test_the_same_password_is_hashed_differently_each_time() -> None:
    assert hash_password("secret") != hash_password("secret")
    assert hash_algorithm(hash_password("secret")) == "scrypt"


def test_a_password_hash_exported_from_rabbitmq_logs_in() -> None:
    salt = bytes([0x90, 0x8D, 0xC6, 0x0A])  # the example of RabbitMQ's «Passwords» guide
    exported = base64.b64encode(salt + hashlib.sha256(salt + b"test12").digest()).decode()
    assert exported == "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    authority = Authority([User("ada", exported)])
    assert isinstance(authority.authenticate("ada", "test12", loopback=True), User)
    assert isinstance(authority.authenticate("ada", "test13", loopback=True), Refusal)


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
    assert authority_with(write=pattern).can("ada", "/", Access.WRITE, name) is allowed


def test_each_access_has_a_pattern_of_its_own() -> None:
    authority = authority_with(configure="^c", write="^w", read="^r")
    granted = {
        access: [name for name in "cwr" if authority.can("ada", "/", access, name)] for access in Access
    }
    assert granted == {Access.CONFIGURE: ["c"], Access.WRITE: ["w"], Access.READ: ["r"]}


def test_a_user_without_permission_in_a_host_may_not_enter_it() -> None:
    authority = authority_with(configure=".*", write=".*", read=".*")
    assert authority.may_enter("ada", "/")
    assert not authority.may_enter("ada", "other")
    assert not authority.can("ada", "other", Access.READ, "q")
    assert not authority.can("bob", "/", Access.READ, "q")


def test_a_remembered_answer_does_not_outlive_a_change() -> None:
    authority = authority_with(read=".*")
    assert authority.can("ada", "/", Access.READ, "q")
    authority.grant(Permission("ada", "/", "", "", "^other$"))
    assert not authority.can("ada", "/", Access.READ, "q")
    authority.grant(Permission("ada", "/", "", "", "q"))
    assert authority.can("ada", "/", Access.READ, "q")
    assert authority.revoke("ada", "/")
    assert not authority.can("ada", "/", Access.READ, "q")
    assert not authority.revoke("ada", "/")


def test_dropping_a_user_or_a_host_drops_its_permissions() -> None:
    authority = authority_with(read=".*")
    authority.grant(Permission("ada", "other", "", "", ".*"))
    authority.drop_vhost("other")
    assert not authority.may_enter("ada", "other")
    assert authority.drop_user("ada")
    assert not authority.may_enter("ada", "/")
    assert list(authority.permissions()) == []
    assert not authority.drop_user("ada")


def test_a_pattern_that_is_not_a_regular_expression_is_refused_by_name() -> None:
    with pytest.raises(PatternError, match=r"write: '\*\*'"):
        Permission("ada", "/", ".*", "**", ".*")


def test_users_and_permissions_survive_as_json_rows() -> None:
    user = User("ada", hash_password("secret"), ("management", "monitoring"))
    permission = Permission("ada", "/", "^a", "^b", "")
    assert User.from_row(json.loads(json.dumps(user.to_row()))) == user
    assert Permission.from_row(json.loads(json.dumps(permission.to_row()))) == permission


def test_tags_say_who_may_manage_and_who_administers() -> None:
    assert not User("ada", "").may_manage
    assert not User("ada", "", ("impersonator",)).may_manage
    assert User("ada", "", ("management",)).may_manage
    assert not User("ada", "", ("management",)).is_administrator
    assert User("ada", "", ("monitoring",)).sees_everything
    assert User("ada", "", ("administrator",)).may_manage
