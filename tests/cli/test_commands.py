"""The `lbg` command as a person meets it: help, errors, exit status."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from lbgroup.cli import COMMANDS, cli
from lbgroup.commands import CliError, error_line, redacted, run
from testing.command_line import Lbg


def every_command() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []

    def walk(command: click.Command, path: tuple[str, ...]) -> None:
        found.append(path)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                walk(inner, (*path, name))

    for name, entry in COMMANDS.items():
        walk(entry.load(), (name,))
    return found


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_every_command_has_help_with_an_example(lbg: Lbg, path: tuple[str, ...]) -> None:
    said = lbg(*path, "--help")
    assert said.status == 0
    if path not in {
        ("group",),
        ("broker",),
        ("dead",),
        ("park",),
        ("operator",),
        ("pipeline",),
    }:  # they only have commands
        assert f"Example: lbg {' '.join(path)}" in " ".join(said.out.split())


@pytest.mark.process
def test_help_lists_every_command_without_importing_any() -> None:
    code = (
        "import sys; from lbgroup.__main__ import main\n"
        "sys.argv = ['lbg', '--help']; status = main()\n"
        "small = {'lbg_core', 'lbg_core.redaction'}\n"
        "heavy = {name for name in set(sys.modules) - small\n"
        "    if name.partition('.')[0] in {'aiohttp', 'rich', 'asyncio', 'lbg_core', 'lbg_broker', 'lbg_sidecar'}}\n"
        "assert not heavy, heavy\n"
        "sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert name in done.stdout


def test_the_version_is_told(lbg: Lbg) -> None:
    assert lbg("--version").out.startswith("lbg 0.")


NOWHERE = "amqp://127.0.0.1:1/"


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["nope"], 2, "No such command 'nope'"),
        (["group", "create"], 2, "Missing argument 'NAME'"),
        (["validate"], 2, "Missing option '--group'"),
        (["validate", "--group", "g", "--idle-timeout", "0"], 2, "--idle-timeout"),
        (["group", "create", "g", "--client-password-file", "/nowhere"], 2, "'/nowhere' does not exist"),
        (["group", "create", "Bad.Name"], 2, "name 'Bad.Name': must be a DNS label"),
        (["group", "create", "g", "--hash-count", "ten"], 2, "'ten' must be a whole number from 1 to 65536"),
        (["group", "create", "g", "--hash-count", "3"], 2, "queue_count 4: must be at most hash_count (3)"),
        (["group", "create", "g", "--hash-prefix", "a.b"], 2, "hash_prefix 'a.b': must not contain"),
        (["group", "create", "g", "--max-clients", "9"], 2, "max_clients 9: must be at most queue_count (4)"),
        (["group", "show", "Bad.Name"], 2, "must be a DNS label"),
        (["group", "list", "--broker", "http://h/"], 2, "must begin with amqp:// or amqps://"),
        (["group", "list", "--management", "h:1"], 2, "a management URL looks like http://"),
        (["group", "list", "--cafile", "/etc/hostname"], 2, "need an amqps:// or https:// address"),
        (["broker", "serve"], 2, "Missing option '--data-dir'"),
        (["broker", "serve", "--data-dir", "not-made", "--listen", "here"], 2, "'here' is not HOST:PORT"),
        (["broker", "serve", "--data-dir", "/dev/null/x"], 1, "/dev/null/x"),
        (
            ["broker", "serve", "--data-dir", "not-made", "--admin-username-file", "/dev/null"],
            2,
            "--admin-username-file and --admin-password-file go together",
        ),
        (
            [
                *("broker", "serve", "--data-dir", "not-made"),
                *("--admin-username-file", "/dev/null", "--admin-password-file", "/dev/null"),
            ],
            1,
            "/dev/null: its first line is empty",
        ),
        (["group", "create", "g", "--mode", "Foo"], 2, "'Foo' is not one of 'Exclusive'"),
        (["dead", "list", "g", "--broker", NOWHERE], 1, "`lbg broker serve` starts a broker, and --broker"),
        (
            [
                *("publish", "--group", "g", "--keyless", "--connect-timeout", "1", "--broker", NOWHERE),
                __file__,
            ],
            1,
            "`lbg broker serve` starts a broker, and --broker",
        ),
        (["demo", "--input", "/etc/hostname"], 2, "--input needs --key FIELD"),
        (["demo", "--report", "/nowhere/at/all.json"], 1, "there is no directory /nowhere/at"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_command_line_gets_one_clear_line(
    lbg: Lbg, arguments: list[str], status: int, words: str
) -> None:
    said = lbg(*arguments)
    assert said.status == status
    assert said.last_line.startswith("lbg: error: ")
    assert words in said.last_line
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["group", "create", "g"],
        ["group", "show", "g"],
        ["group", "list"],
        ["group", "delete", "g", "--force", "--yes"],
        ["validate", "--group", "g"],
    ],
    ids=" ".join,
)
def test_a_broker_that_is_not_there_is_named_without_its_password(lbg: Lbg, arguments: list[str]) -> None:
    said = lbg(*arguments, "--broker", "amqp://someone:s3cret@127.0.0.1:1/")
    assert said.status == 1
    assert "127.0.0.1" in said.last_line
    assert said.err.count("\n") == 1
    assert "s3cret" not in said.err


def test_an_unexpected_error_is_one_line_and_a_traceback_only_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    def breaks() -> None:
        raise KeyError("amqp://u:pw@h/")

    monkeypatch.delenv("LBG_DEBUG", raising=False)
    assert run(breaks, []) == 1
    quiet = capsys.readouterr().err
    assert quiet == "lbg: error: internal error: KeyError: 'amqp://u:***@h/' (LBG_DEBUG=1 shows where)\n"
    monkeypatch.setenv("LBG_DEBUG", "1")
    assert run(breaks, []) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_ends_with_the_status_that_shells_expect(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def waits() -> None:
        raise KeyboardInterrupt

    assert run(waits, []) == 130
    assert capsys.readouterr().err.strip() == "lbg: interrupted"


@pytest.mark.process
def test_a_reader_that_goes_away_is_no_error_to_speak_of() -> None:
    done = subprocess.run(
        f"{sys.executable} -m lbgroup demo --help | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("Usage: lbg demo")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("amqp://user:pass@host/v", "amqp://user:***@host/v"),
        ("see https://u:p%40ss@h:1 and amqps://a:b@c", "see https://u:***@h:1 and amqps://a:***@c"),
        ("amqp://user@host:5672/", "amqp://user@host:5672/"),
        ("nothing here", "nothing here"),
    ],
)
def test_passwords_in_addresses_are_never_shown(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert error_line(CliError(text)) == f"lbg: error: {shown}"


def test_the_root_command_says_where_the_broker_is_by_default() -> None:
    assert "amqp://guest:guest@127.0.0.1:5672/" in (cli.help or "")
