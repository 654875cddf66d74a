"""--output: which commands have it, what their JSON is, and the schema that it has."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from lbg_core.group import GroupSpec
from lbgroup.documents import DOCUMENTS
from testing import ROOT
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.command_line import Lbg, Where, start_lbg
from testing.output_documents import SCHEMA, checked, leaves

DOCS = ROOT / "docs"

WITHOUT = {
    "consume": "prints messages as JSON Lines in any case",
    "sidecar": "prints logs only",
    "console": "prints logs only",
    "operator run": "prints logs only",
    "completion": "prints a script",
}
"""Commands without --output, and the reasons."""


def test_every_command_has_the_option_or_a_reason_not_to() -> None:
    having = {path for path, command in leaves() if any("--output" in one.opts for one in command.params)}
    assert having | WITHOUT.keys() == {path for path, _ in leaves()}
    assert not having & WITHOUT.keys()
    assert DOCUMENTS.keys() == having | {"consume"}
    for path, command in leaves():
        shorts = [one.opts for one in command.params if "-o" in one.opts]
        assert shorts == ([["-o", "--output"]] if path in having else [])


@pytest.mark.process
@pytest.mark.parametrize(
    ("file", "arguments"), [("output.schema.json", ("--schema",)), ("output.md", ())], ids=["schema", "page"]
)
def test_the_reference_is_made_of_the_documents(file: str, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, DOCS / "output_reference.py", *arguments]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (DOCS / "reference" / file).read_text() == made.stdout, (
        f"run: python docs/output_reference.py {' '.join(arguments)} > docs/reference/{file}"
    )


@pytest.mark.long
def test_the_schema_is_one_and_allows_keys_of_later_versions() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    stopped = {"action": "stopped", "data_dir": "d", "pid": 1}
    validator = Draft202012Validator({**SCHEMA, "$ref": "#/$defs/broker-stop"})
    assert validator.is_valid({**stopped, "later": 1})
    assert not validator.is_valid({"action": "stopped", "pid": 1})
    with pytest.raises(AssertionError, match="later"):
        checked("broker stop", json.dumps({**stopped, "later": 1}))


def test_a_group_from_create_to_delete(lbg: Lbg, broker: Where, unique: str, tmp_path: Path) -> None:
    def said(*command: str) -> dict[str, object]:
        done = lbg("group", *command, "-o", "json", *broker.options)
        assert done.status == 0, done.err
        found: dict[str, object] = json.loads(done.out)
        return found

    counts = ("--hash-count", "20", "--queue-count", "2", "--queue-size-mb", "1")
    created = said("create", unique, *counts)
    assert (created["action"], created["username"]) == ("created", unique)
    assert created["password"]
    again = said("create", unique, *counts)
    assert (again["action"], again["changes"], "password" in again) == ("unchanged", [], False)
    file = tmp_path / "password"
    rotated = said("rotate", unique, "--write-password", str(file), "--client-username", f"{unique}-2")
    assert (rotated["action"], rotated["password_file"]) == ("rotated", str(file))
    assert "password" not in rotated
    assert file.read_text().strip() not in json.dumps(rotated)
    assert said("rotate", unique, "--finish")["action"] == "finished"
    assert said("rotate", unique, "--finish")["action"] == "unchanged"
    assert said("publisher", unique)["username"] == f"{unique}.publisher"
    assert said("adopt", unique)["action"] == "unchanged"
    changed = said("repartition", unique, "--queues", "3")
    assert (changed["action"], changed["former_queue_count"], changed["queue_count"]) == (
        "repartitioned",
        2,
        3,
    )
    assert said("repartition", unique, "--queues", "3")["action"] == "unchanged"
    paused = said("pause", unique, "--all")
    assert (paused["action"], paused["consumption"], paused["ingress"]) == ("paused", True, True)
    resumed = said("resume", unique)
    assert (resumed["action"], resumed["consumption"], resumed["ingress"]) == ("resumed", True, False)
    assert said("show", unique)["ingress_paused"] is True
    assert said("resume", unique, "--all")["ingress"] is True
    assert said("peek", unique)["messages"] == []
    deleted = said("delete", unique)
    assert deleted["action"] == "deleted"
    assert deleted["changes"]


def test_an_error_is_one_line_and_no_document(lbg: Lbg, broker: Where, unique: str) -> None:
    for command in ("show", "pause", "adopt", "delete"):
        failed = lbg("group", command, unique, "--output", "json", *broker.options)
        assert (failed.status, failed.out) == (1, "")
        assert failed.err.startswith("lbg: error: ")
        assert failed.err.count("\n") == 1


def test_publish_prints_its_report(lbg: Lbg, broker: Where, group: str, tmp_path: Path) -> None:
    rows, file = tmp_path / "rows.jsonl", tmp_path / "report.json"
    rows.write_text('{"k": "a"}\n{"k": "b"}\n')
    done = lbg(
        *("publish", "--group", group, "--key", "k", "--report", str(file), "-o", "json"),
        *("--broker", broker.broker, str(rows)),
    )
    assert done.status == 0, done.err
    assert json.loads(done.out) == {"group": group, **json.loads(file.read_text())}
    assert json.loads(done.out)["confirmed"] == 2
    nothing = tmp_path / "nothing.jsonl"
    nothing.write_text("")
    empty = lbg(
        *("publish", "--group", group, "--key", "k", "-o", "json", "--broker", broker.broker, str(nothing))
    )
    assert json.loads(empty.out)["published"] == 0
    assert "nothing to publish" in empty.err


def test_closing_reports_the_sessions_that_are_left(lbg: Lbg, embedded: EmbeddedBroker, unique: str) -> None:
    where = Where(embedded.url, embedded.management_url)
    spec = GroupSpec(unique, unique, hash_count=4, queue_size_mb=1, client_username="guest", mode="Sessions")
    asyncio.run(declare_group(where.broker, spec))
    done = lbg("group", "close", unique, "-o", "json", *where.options)
    expected = {"group": unique, "action": "closed", "session": None, "pool": 0, "sessions": []}
    assert json.loads(done.out) == expected
    assert json.loads(lbg("group", "show", unique, "-o", "json", *where.options).out)["closed"] is True


def test_messages_of_a_session_have_its_numbers(
    lbg: Lbg, embedded: EmbeddedBroker, unique: str, tmp_path: Path
) -> None:
    spec = GroupSpec(unique, unique, hash_count=4, queue_size_mb=1, client_username="guest", mode="Sessions")
    asyncio.run(declare_group(embedded.url, spec))
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"k": "a"}\n{"k": "b"}\n')
    consuming = start_lbg("consume", "--group", unique, "--name", "s", "--broker", embedded.url)
    assert lbg("publish", "--group", unique, "--key", "k", "--broker", embedded.url, str(rows)).status == 0
    assert consuming.stdout is not None
    shown = [checked("consume", consuming.stdout.readline()) for _ in range(2)]
    assert [(one["session"], one["sequence"]) for one in shown] == [("s", 1), ("s", 2)]
    assert all(isinstance(one["epoch"], str) for one in shown)


def test_copies_of_a_store_report_their_counts(lbg: Lbg, embedded: EmbeddedBroker, tmp_path: Path) -> None:
    data, copy, other = str(embedded.data_dir), str(tmp_path / "copy"), str(tmp_path / "other")
    refused = lbg("broker", "backup", "--data-dir", data, "-o", "json", "-")
    assert (refused.status, refused.out) == (2, "")
    assert refused.last_line == "lbg: error: --output json needs a FILE: the copy goes to standard output"
    backed_up = json.loads(lbg("broker", "backup", "--data-dir", data, "-o", "json", copy).out)
    restored = json.loads(lbg("broker", "restore", "--data-dir", other, "-o", "json", copy).out)
    assert (backed_up["action"], restored["action"]) == ("backed_up", "restored")
    assert backed_up["size_bytes"] == restored["size_bytes"] > 0


def test_the_operator_reports_the_groups_that_it_released(lbg: Lbg, monkeypatch: pytest.MonkeyPatch) -> None:
    async def release(namespaces: Sequence[str], *, operator: object) -> list[str]:
        return [f"{one}/orders" for one in namespaces]

    monkeypatch.setattr("lbg_operator.runtime.uninstall.remove_finalizer", release)
    done = lbg("operator", "release", "--namespace", "shop", "--output", "json")
    assert json.loads(done.out) == {"action": "released", "groups": ["shop/orders"]}
