"""Every command on a RabbitMQ node that asks clients for a certificate, on AMQP and on the management API alike."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from testing.command_line import Lbg, start_lbg
from testing.rabbitmq.node import RabbitNode, free_ports
from testing.waiting import GUARD_S

pytestmark = pytest.mark.rabbitmq


@dataclass(frozen=True)
class Tls:
    """Ports of the node over TLS, and certificates of a client."""

    broker: str
    management: str
    plain: str
    cafile: Path
    certfile: Path
    keyfile: Path

    @property
    def files(self) -> tuple[str, ...]:
        return (
            "--cafile",
            str(self.cafile),
            "--certfile",
            str(self.certfile),
            "--keyfile",
            str(self.keyfile),
        )

    @property
    def options(self) -> tuple[str, ...]:
        return ("--broker", self.broker, "--management", self.management, *self.files)


@pytest.fixture(scope="module")
def tls() -> Iterator[Tls]:
    authority = trustme.CA()
    node = RabbitNode(statistics_s=1, plugins=("rabbitmq_auth_mechanism_ssl",))
    place = node.directory
    tls = Tls(
        *(
            f"{scheme}://guest:guest@localhost:{port}"
            for scheme, port in zip(("amqps", "https"), free_ports(2), strict=True)
        ),
        node.amqp_url,
        *(place / name for name in ("ca.pem", "client.pem", "client.key")),
    )
    server, client = (
        authority.issue_cert("localhost"),
        authority.issue_cert("member@example.org", common_name="member"),
    )
    authority.cert_pem.write_to_path(tls.cafile)
    for name, issued in (("server", server), ("client", client)):
        issued.cert_chain_pems[0].write_to_path(place / f"{name}.pem")
        issued.private_key_pem.write_to_path(place / f"{name}.key")
    asked = {"verify": "verify_peer", "fail_if_no_peer_cert": "true"}
    files = {
        "cacertfile": tls.cafile,
        "certfile": place / "server.pem",
        "keyfile": place / "server.key",
        **asked,
    }
    node.config |= {
        "listeners.ssl.1": f"127.0.0.1:{tls.broker.rpartition(':')[2]}",
        "management.ssl.ip": "127.0.0.1",
        "management.ssl.port": tls.management.rpartition(":")[2],
        **{
            f"{part}.{key}": str(value)
            for part in ("ssl_options", "management.ssl")
            for key, value in files.items()
        },
        "auth_mechanisms.1": "PLAIN",
        "auth_mechanisms.2": "EXTERNAL",
        "ssl_cert_login_from": "common_name",
    }
    with node:
        yield tls


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"k": number % 5, "n": number}) + "\n" for number in range(50)))
    return file


def test_a_group_is_made_published_to_consumed_judged_shown_and_deleted(
    lbg: Lbg, tls: Tls, unique: str, rows: Path, tmp_path: Path
) -> None:
    amqp = ("--broker", tls.broker, *tls.files)
    report = str(tmp_path / "published.json")
    assert lbg("group", "create", unique, *tls.options).status == 0
    published = lbg("publish", "--group", unique, "--key", "k", "--report", report, *amqp, str(rows))
    assert published.status == 0, published.err
    validator = start_lbg("validate", "--json", "--group", unique, "--expect", report, *amqp)
    assert validator.stdout is not None
    while "listening" not in validator.stdout.readline():
        pass
    member = start_lbg("consume", "--group", unique, "--republish", "--quiet", *amqp)
    out, err = validator.communicate(timeout=GUARD_S)
    assert (validator.returncode, json.loads(out.splitlines()[-1])["distinct"]) == (0, 50), err
    os.kill(member.pid, signal.SIGTERM)
    member.communicate(timeout=GUARD_S)
    assert member.returncode == 0
    shown = json.loads(lbg("group", "show", unique, "--json", *tls.options).out)
    assert (shown["ready"], shown["problems"]) == (0, [])
    assert lbg("group", "delete", unique, *tls.options).status == 0


@pytest.mark.slow
def test_a_demo_plays_there_under_the_engines_name_and_takes_its_group_away(
    lbg: Lbg, tls: Tls, unique: str, tmp_path: Path
) -> None:
    rows, report = tmp_path / "rows.csv", tmp_path / "report.json"
    rows.write_text("\n".join(["tail,n", *(f"N{number % 97},{number}" for number in range(2000))]) + "\n")
    what = (
        "--input",
        str(rows),
        "--key",
        "tail",
        "--speed",
        "12",
        "--group",
        unique,
        "--report",
        str(report),
    )
    nobody = ("--broker", "amqps://guest:guest@localhost:1/")
    demo = start_lbg("demo", *what, *nobody, *tls.options, environment={"TMPDIR": str(tmp_path)})
    out, err = demo.communicate(timeout=GUARD_S)
    assert demo.returncode == 0, err
    found = json.loads(report.read_text())
    assert (found["published"], found["distinct"], found["lost"], found["order_errors"]) == (2000, 2000, 0, 0)
    assert found["engine"].startswith("RabbitMQ ")
    assert f"the proof, on {found['engine']}" in out
    again = lbg("group", "create", unique, *tls.options)  # its user and its queues are free again
    assert (again.status, "password" in again.out) == (0, True)
    assert lbg("group", "delete", unique, *tls.options).status == 0


def test_a_client_certificate_may_be_the_login(lbg: Lbg, tls: Tls, unique: str, rows: Path) -> None:
    """EXTERNAL: the certificate's common name is the user, who has no password to rotate."""
    created = lbg("group", "create", unique, "--client-username", "member", *tls.options)
    assert created.status == 0, created.err
    external = f"{tls.broker.replace('guest:guest@', '')}?auth_mechanism=external"
    said = lbg("publish", "--group", unique, "--key", "k", "--broker", external, *tls.files, str(rows))
    assert said.status == 0, said.err
    assert lbg("group", "delete", unique, "--force", "--yes", *tls.options).status == 0


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        (
            ("group", "show", "g", "--broker", "BROKER"),
            1,
            "certificate: self-signed certificate in certificate chain",
        ),
        (("group", "show", "g", "--broker", "BROKER", "--cafile", "CA"), 1, "CERTIFICATE_REQUIRED"),
        (("consume", "--group", "g", "--broker", "BROKER", "--cafile", "CA"), 1, "CERTIFICATE_REQUIRED"),
        (
            ("publish", "--group", "g", "--keyless", "--broker", "BROKER", "--cafile", "CA", "ROWS"),
            1,
            "CERTIFICATE_REQUIRED",
        ),
        (("validate", "--group", "g", "--broker", "BROKER", "--cafile", "CA"), 1, "CERTIFICATE_REQUIRED"),
        (("validate", "--group", "g", "--broker", "BROKER", "--certfile", "CA"), 2, "certfile CA"),
        (("group", "list", "--broker", "PLAIN", "--cafile", "CA"), 2, "need an amqps:// or https:// address"),
        (("group", "show", "g", "--broker", "WRONG", "--cafile", "CA"), 1, "IP address mismatch"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_is_wrong_with_certificates_is_one_clear_line(
    lbg: Lbg, tls: Tls, rows: Path, command: tuple[str, ...], status: int, words: str
) -> None:
    filled = {
        "BROKER": tls.broker,
        "CA": str(tls.cafile),
        "ROWS": str(rows),
        "PLAIN": "amqp://h/",
        "WRONG": tls.broker.replace("localhost", "127.0.0.1"),
    }
    said = lbg(*(filled.get(word, word) for word in command))
    assert said.status == status
    assert words.replace("certfile CA", f"certfile {tls.cafile}") in said.last_line, said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "its certificate: self-signed certificate in certificate chain"),
        (("--cafile",), "CERTIFICATE_REQUIRED"),
    ],
    ids=["no CA", "no certificate"],
)
def test_a_management_api_that_is_not_trusted_or_does_not_trust_is_told_and_what_needs_amqp_only_goes_on(
    lbg: Lbg, tls: Tls, unique: str, files: tuple[str, ...], words: str
) -> None:
    where = (
        "--broker",
        tls.plain,
        "--management",
        tls.management,
        *(word for file in files for word in (file, str(tls.cafile))),
    )
    refused = lbg("group", "create", unique, *where)
    assert refused.status == 1
    assert words in refused.last_line
    assert "--no-user" in refused.last_line
    created = lbg("group", "create", unique, "--no-user", *where)
    assert created.status == 0
    assert words in created.err
    shown = json.loads(lbg("group", "show", unique, "--json", *where).out)
    assert shown["ready"] == 0
    assert len(shown["problems"]) == 1
    assert words in shown["problems"][0]["text"]
    assert lbg("group", "delete", unique, "--no-user", *where).status == 0
