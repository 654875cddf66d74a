"""`lbg group` on a broker process."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbg_core.admin import connect_admin
from lbg_core.admin.actions import WriteRecord
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.record import Record, kubernetes_owner
from lbg_core.client import ConnectionSettings
from lbg_core.group import GroupSpec
from testing.command_line import Lbg, Where, end_started, start_lbg
from testing.output_documents import checked
from testing.waiting import GUARD_S


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    end_started()


@pytest.fixture
def group(unique: str) -> str:
    return unique


def test_a_group_is_created_shown_listed_and_deleted(lbg: Lbg, broker: Where, group: str) -> None:
    created = lbg("group", "create", group, "--queue-count", "2", *broker.options)
    assert created.status == 0
    assert f"group {group} created: 2 queues, 100 hashes" in created.out
    assert "password" in created.out
    shown = json.loads(lbg("group", "show", group, "--json", *broker.options).out)
    assert shown["attributes"]["queue_count"] == 2
    assert [queue["ready"] for queue in shown["queues"]] == [0, 0]
    assert group in lbg("group", "list", *broker.options).out
    deleted = lbg("group", "delete", group, *broker.options)
    assert (deleted.status, deleted.out.startswith(f"group {group} deleted")) == (0, True)
    again = lbg("group", "delete", group, *broker.options)
    assert again.status == 1
    assert f"there is no group '{group}'" in again.err


def test_a_console_of_a_group_that_is_not_there_ends(lbg: Lbg, broker: Where) -> None:
    said = lbg("console", "typo", "--listen", "127.0.0.1:0", *broker.options)
    assert (said.status, said.last_line) == (
        1,
        "lbg: error: there is no group 'typo' on this broker: `lbg group create typo …` creates it",
    )


def test_creating_again_does_nothing_and_tells_no_password(lbg: Lbg, broker: Where, group: str) -> None:
    lbg("group", "create", group, *broker.options)
    again = lbg("group", "create", group, *broker.options)
    assert again.status == 0
    assert again.out == f"group {group} is there, nothing to do: 4 queues, 100 hashes, prefix '{group}'\n"


def test_a_different_group_is_refused_with_the_difference(lbg: Lbg, broker: Where, group: str) -> None:
    lbg("group", "create", group, *broker.options)
    refused = lbg("group", "create", group, "--hash-count", "50", *broker.options)
    assert refused.status == 1
    assert "hash_count: 100 -> 50" in refused.err


def owned_by_kubernetes(broker: Where, group: str) -> None:
    """A group that the operator of a cluster made."""

    async def make() -> None:
        async with connect_admin(broker.broker, broker.management) as admin:
            await admin.create_group(GroupSpec(group))
        live = LiveAdmin(ConnectionSettings.parse(broker.broker))
        owner = kubernetes_owner("cluster", "object")
        await live.perform(WriteRecord(group, Record(GroupSpec(group).to_record(), owner)))
        await live.close()

    asyncio.run(make())


@pytest.mark.parametrize(
    "command", [("delete", "--force", "--yes"), ("rotate",), ("create",)], ids=lambda one: one[0]
)
def test_a_group_of_kubernetes_is_changed_after_its_adoption_only(
    lbg: Lbg, broker: Where, group: str, command: tuple[str, ...]
) -> None:
    owned_by_kubernetes(broker, group)
    verb, *options = command
    refused = lbg("group", verb, group, *options, *broker.options)
    assert refused.status == 1
    assert f"group '{group}' on this broker has another owner, and nothing was changed there" in refused.err
    assert "`lbg group adopt" in refused.err
    adopted = lbg("group", "adopt", group, *broker.options)
    assert (adopted.status, adopted.out.splitlines()) == (
        0,
        [
            f"group {group} is managed by hand now; its owner before: Kubernetes object object of cluster cluster",
            "its queues, messages, members, user and password stay as they are",
            "its object of Kubernetes reports NotOwned: it changes nothing of the group and does not delete it, unless "
            "it has adopt and its Broker allows that",
        ],
    )
    assert lbg("group", "adopt", group, *broker.options).out == (
        f"group {group} is managed by hand, nothing to do\n"
    )
    assert lbg("group", verb, group, *options, *broker.options).status == 0


def test_a_given_password_is_never_printed(lbg: Lbg, broker: Where, group: str, password_file: Path) -> None:
    created = lbg("group", "create", group, "--client-password-file", str(password_file), *broker.options)
    assert created.status == 0
    assert "s3cret-word" not in created.out + created.err
    user = broker.broker.replace("guest:guest", f"{group}:s3cret-word")
    assert lbg("group", "show", group, "--broker", user, "--management", broker.management).status == 0


def test_a_generated_password_goes_to_a_file_of_its_own(
    lbg: Lbg, broker: Where, group: str, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    created = lbg("group", "create", group, "--write-password", str(file), *broker.options)
    assert created.status == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    password = file.read_text().strip()
    assert password not in created.out
    taken = lbg("group", "create", group, "--write-password", str(file), *broker.options)
    assert taken.status == 1
    assert "exists" in taken.err
    assert file.read_text().strip() == password


def test_a_create_that_is_refused_leaves_no_password_file(
    lbg: Lbg, broker: Where, group: str, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    lbg("group", "create", group, *broker.options)
    refused = lbg(
        "group", "create", group, "--hash-count", "50", "--write-password", str(file), *broker.options
    )
    assert refused.status == 1
    assert "hash_count: 100 -> 50" in refused.err
    assert not file.exists()


def test_an_empty_password_file_is_an_error(lbg: Lbg, broker: Where, group: str, password_file: Path) -> None:
    password_file.write_text("\nsecond line\n")
    refused = lbg("group", "create", group, "--client-password-file", str(password_file), *broker.options)
    assert (refused.status, "its first line is empty" in refused.err) == (1, True)


def test_without_a_management_api_it_says_what_to_do(lbg: Lbg, broker: Where, group: str) -> None:
    nowhere = ("--broker", broker.broker, "--management", "http://127.0.0.1:1")
    refused = lbg("group", "create", group, *nowhere)
    assert refused.status == 1
    assert "http://127.0.0.1:1 cannot be reached" in refused.err
    assert "--no-user" in refused.err
    assert lbg("group", "create", group, "--no-user", "--broker", broker.broker).status == 0
    assert lbg("group", "show", group, *nowhere).status == 0
    assert lbg("group", "delete", group, "--no-user", "--broker", broker.broker).status == 0


def test_wrong_credentials_are_one_line(lbg: Lbg, broker: Where, group: str) -> None:
    wrong = broker.broker.replace("guest:guest", "guest:s3cret-word")
    refused = lbg("group", "create", group, "--broker", wrong, "--management", broker.management)
    assert refused.status == 1
    assert refused.err.count("\n") == 1
    assert "refuses the login" in refused.err
    assert "s3cret-word" not in refused.err


def test_the_environment_may_say_where_the_broker_is(
    lbg: Lbg, broker: Where, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LBG_BROKER", broker.broker)
    monkeypatch.setenv("LBG_MANAGEMENT", broker.management)
    monkeypatch.setenv("LBG_CLIENT_PASSWORD", "from-the-environment")
    created = lbg("group", "create", group)
    assert created.status == 0
    assert f"user {group} of members" not in created.out


def test_create_prints_a_login_of_members_and_one_that_can_publish_and_nothing_else(
    lbg: Lbg, broker: Where, group: str, tmp_path: Path
) -> None:
    rows, password = tmp_path / "rows.csv", tmp_path / "password"
    rows.write_text("k,n\na,1\nb,2\n")
    created = lbg("group", "create", group, *broker.options)
    logins = [line.split() for line in created.out.splitlines() if line.startswith("user ")]
    assert [(words[1], words[3]) for words in logins] == [
        (group, "members:"),
        (f"{group}.publisher", "publishers:"),
    ]
    publish = ("publish", "--group", group, "--key", "k", str(rows), "--broker", broker.broker)
    for words in logins:
        password.write_text(words[5])
        login = ("--username", words[1], "--password-file", str(password))
        assert lbg(*publish, *login).status == 0
    refused = lbg("group", "skip", group, "p-1-0-0", "--broker", broker.broker, *login)
    assert refused.status == 1
    shown = json.loads(lbg("group", "show", group, "--json", *broker.options).out)
    kinds = [one["kind"] for one in shown["problems"]]
    assert (shown["publisher_username"], kinds) == (f"{group}.publisher", ["NoMembers"])
    again = lbg("group", "create", group, *broker.options)
    assert again.out.splitlines() == [
        created.out.splitlines()[0].replace("created", "is there, nothing to do")
    ]


def test_create_writes_both_passwords_into_files(lbg: Lbg, broker: Where, group: str, tmp_path: Path) -> None:
    files = {"username": tmp_path / "members", "publisher_username": tmp_path / "publishers"}
    options = ("--write-password", str(files["username"]))
    more = ("--write-publisher-password", str(files["publisher_username"]))
    created = lbg("group", "create", group, "--output", "json", *options, *more, *broker.options)
    assert (created.status, created.err) == (0, "")
    document = json.loads(created.out)
    assert document["password_file"] == str(files["username"])
    assert document["publisher_password_file"] == str(files["publisher_username"])
    assert (document["username"], document["publisher_username"]) == (group, f"{group}.publisher")
    for file in files.values():
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.read_text().strip() not in created.out


def test_a_group_of_one_user_is_created_if_asked_for(lbg: Lbg, broker: Where, group: str) -> None:
    created = lbg("group", "create", group, "--publisher-user", "Shared", *broker.options)
    assert [line.split()[1] for line in created.out.splitlines() if line.startswith("user ")] == [group]
    shown = json.loads(lbg("group", "show", group, "--json", *broker.options).out)
    assert (shown["publisher_username"], shown["problems"]) == (None, [])


def test_publishers_get_a_user_of_their_own(lbg: Lbg, broker: Where, group: str, tmp_path: Path) -> None:
    members, publishers, rows = (tmp_path / name for name in ("members", "publishers", "rows.csv"))
    rows.write_text("k,n\na,1\nb,2\n")
    shared = ("--publisher-user", "Shared", "--write-password", str(members))
    lbg("group", "create", group, *shared, *broker.options)
    only = ("--only", "--write-password", str(publishers))
    separated = lbg("group", "publisher", group, *only, *broker.options)
    username = f"{group}.publisher"
    assert (separated.status, separated.err) == (0, "")
    assert f"record the users of group {group}" in separated.out.splitlines()
    assert separated.out.splitlines()[-1] == f"user {username}: its password is in {publishers}"
    assert publishers.read_text().strip() not in separated.out
    publish = ("publish", "--group", group, "--key", "k", str(rows), "--broker", broker.broker)
    published = lbg(*publish, "--username", username, "--password-file", str(publishers))
    assert published.status == 0, published.err
    refused = lbg(*publish, "--username", group, "--password-file", str(members))
    assert refused.status == 1
    assert "may not publish" in refused.err
    shown = lbg("group", "show", group, *broker.options)
    assert f"publishers: user {username}\n" in shown.out
    described = json.loads(lbg("group", "show", group, "--json", *broker.options).out)
    assert described["publisher_username"] == username
    assert sum(queue["ready"] for queue in described["queues"]) == 2


def test_an_empty_password_file_of_publishers_is_an_error(
    lbg: Lbg, broker: Where, group: str, password_file: Path
) -> None:
    password_file.write_text("")
    refused = lbg(
        "group", "publisher", group, "--publisher-password-file", str(password_file), *broker.options
    )
    assert (refused.status, "--publisher-password-file" in refused.err) == (1, True)


def test_a_user_who_may_not_administer_is_told_to_log_in_as_one_who_may(
    lbg: Lbg, broker: Where, unique: str, password_file: Path
) -> None:
    admin = ("--client-password-file", str(password_file), *broker.options)
    assert lbg("group", "create", unique, *admin).status == 0
    user = ("--broker", broker.broker.replace("guest:guest", f"{unique}:s3cret-word"))
    for command, group in (
        (("create", "another", "--no-user"), "another"),
        (("delete", unique, "--no-user"), unique),
    ):
        refused = lbg("group", *command, *user)
        assert (refused.status, refused.last_line) == (
            1,
            f"lbg: error: user '{unique}' may not create, change or delete group '{group}': use --username with an "
            "administrator's name and --password-file, or an administrator in --broker",
        )
    listed = lbg("group", "list", *user, "--management", broker.management.replace("guest:guest@", ""))
    assert (listed.status, listed.last_line.split(" refuses ")[1]) == (
        1,
        f"user '{unique}': Not management user: use --username or --management with an administrator's login",
    )


def test_a_group_is_watched_until_it_is_interrupted(lbg: Lbg, broker: Where, group: str) -> None:
    lbg("group", "create", group, "--queue-count", "2", *broker.options)
    watching = start_lbg(*("group", "show", group, "--watch", "0.1", "--json", *broker.options))
    assert watching.stdout is not None
    shown = [checked("group show", watching.stdout.readline()) for _ in range(2)]
    assert [one["group"] for one in shown] == [group, group]
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=GUARD_S)
    assert (watching.returncode, err.strip()) == (130, "lbg: interrupted")


def test_on_a_terminal_a_watched_group_replaces_the_screen(lbg: Lbg, broker: Where, group: str) -> None:
    lbg("group", "create", group, *broker.options)
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as screen:
        watching = start_lbg(*("group", "show", group, "--watch", *broker.options), stdout=screen)
    shown = b""
    while b"no member answered" not in shown:
        shown += os.read(controller, 4096)
    assert shown.startswith(b"\x1b[H\x1b[2J\x1b[3J")
    assert f"group {group}\r\n".encode() in shown
    watching.send_signal(signal.SIGINT)
    assert watching.wait(timeout=GUARD_S) == 130
    os.close(controller)


def test_a_watch_of_no_group_ends_at_once(lbg: Lbg, broker: Where, group: str) -> None:
    said = lbg("group", "show", group, "--watch", *broker.options)
    assert (said.status, said.last_line.startswith(f"lbg: error: there is no group '{group}'")) == (1, True)
