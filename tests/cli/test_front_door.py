"""`from lbgroup import …`: names, types, what an import costs, and the example that uses all of it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

import lbgroup
from lbg_core.admin import (
    Denied,
    GroupDiffers,
    GroupNotFound,
    StillInUse,
    Unreachable,
    Unsupported,
    connect_admin,
    group_admin,
)
from lbg_core.client import SettingsError
from lbg_core.group import (
    BALANCED,
    BY_LOAD,
    HASH_FUNCTIONS,
    MODES,
    STATIC,
    Assignment,
    GroupSpec,
    HashFunction,
    Mode,
)
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import MemberSettings, Order, WhenExhausted
from testing import ROOT
from testing.command_line import Where, clean_environment
from testing.waiting import GUARD_S

QUICKSTART = ROOT / "examples" / "quickstart.py"
LINES_MAX = 25


def test_every_name_is_that_of_the_package_that_defines_it() -> None:
    assert all(getattr(lbgroup, name) is not None for name in lbgroup.__all__)
    assert set(lbgroup.__all__) <= set(dir(lbgroup))
    assert lbgroup.Group is GroupSpec
    assert lbgroup.Publisher is GroupPublisher
    assert lbgroup.MemberSettings is MemberSettings
    assert lbgroup.connect_admin is group_admin.connect_admin is connect_admin


@pytest.mark.parametrize("package", ["lbgroup", "lbg_core.admin"])
def test_a_name_that_is_not_there_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Consumer'"):
        _ = importlib.import_module(package).Consumer
    with pytest.raises(ImportError, match="cannot import name 'Consumer'"):
        exec(f"from {package} import Consumer")


@pytest.mark.process
@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import lbgroup", "aiohttp, asyncio, ssl, click, lbg_core, lbg_broker, lbg_sidecar"),
        ("from lbgroup import Group", "aiohttp, asyncio, ssl, lbg_sidecar"),
        ("from lbgroup import Publisher", "aiohttp, lbg_core.admin.live, lbg_sidecar"),
        ("from lbgroup import Member, run", "aiohttp, lbg_core.admin.live"),
    ],
)
def test_an_import_brings_nothing_that_it_does_not_need(statement: str, heavy: str) -> None:
    code = f"import sys\n{statement}\nassert not (found := {{*sys.argv[1].split(', ')}} & set(sys.modules)), found"
    done = subprocess.run([sys.executable, "-c", code, heavy], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_texts_that_a_type_checker_accepts_are_those_that_are_accepted() -> None:
    assert get_args(Mode) == MODES
    assert get_args(Assignment) == (BALANCED, STATIC, BY_LOAD)
    assert get_args(HashFunction) == tuple(HASH_FUNCTIONS)
    accepted = get_type_hints(MemberSettings)
    for field, words in (("order", Order), ("when_exhausted", WhenExhausted)):
        (literal,) = (one for one in get_args(accepted[field]) if get_origin(one) is Literal)
        assert get_args(literal) == tuple(words)


def test_settings_of_texts_are_those_of_words_and_paths() -> None:
    texts = MemberSettings(
        group="orders",
        name="m",
        order="key",
        when_exhausted="dead-letter",
        journal="/var/journal",
        commits="/var/commits",
    )
    assert texts == MemberSettings(
        group="orders",
        name="m",
        order=Order.KEY,
        when_exhausted=WhenExhausted.DEAD_LETTER,
        journal=Path("/var/journal"),
        commits=Path("/var/commits"),
    )


async def test_groups_are_created_shown_listed_and_deleted(broker: Where, unique: str) -> None:
    spec = lbgroup.Group(unique, hash_count=12, queue_count=3)
    async with lbgroup.connect_admin(broker.broker, broker.management) as admin:
        created = await admin.create_group(spec)
        assert created.spec == spec
        assert not created.was_there
        assert created.password
        again = await admin.create_group(spec)
        assert (again.was_there, again.changes, again.password) == (True, (), None)
        with pytest.raises(GroupDiffers, match="queue_count: 3 -> 4"):
            await admin.create_group(lbgroup.Group(unique, hash_count=12))
        shown = await admin.show_group(unique, listen_s=0.1)
        assert shown.spec == spec
        assert unique in [one.group for one in await admin.list_groups()]
        with pytest.raises(Unsupported, match="only a group in mode Sessions can be closed"):
            await admin.close_group(unique)
        async with lbgroup.Publisher(broker.broker, group=unique) as publisher:
            await publisher.publish(key="k", body=b"")
        with pytest.raises(StillInUse):
            await admin.delete_group(unique)
        assert await admin.delete_group(unique, force=True)
        with pytest.raises(GroupNotFound):
            await admin.show_group(unique)


async def test_a_given_password_is_that_of_the_groups_user(broker: Where, unique: str) -> None:
    async with lbgroup.connect_admin([broker.broker], [broker.management]) as admin:
        created = await admin.create_group(lbgroup.Group(unique), password="s3cret-word")
        assert created.password is None
        url = broker.broker.replace("guest:guest@", f"{unique}:s3cret-word@")
        async with lbgroup.Publisher(url, group=unique) as publisher:
            await publisher.publish(key="k", body=b"")
        await admin.delete_group(unique, force=True)


async def test_a_broker_that_cannot_be_used_is_reported_on_entering(broker: Where) -> None:
    for url, error in (
        ("amqp://guest:s3cret@127.0.0.1:1/", Unreachable),
        (broker.broker.replace("guest:guest@", "guest:s3cret@"), Denied),
        ("http://guest:s3cret@localhost/", SettingsError),
    ):
        with pytest.raises(error) as caught:
            async with lbgroup.connect_admin(url):
                pass
        assert "s3cret" not in str(caught.value)
    with pytest.raises(ValueError, match="a management URL looks like"):
        async with lbgroup.connect_admin(broker.broker, "amqp://guest:guest@localhost/"):
            pass


def started(program: Path, source: str) -> subprocess.Popen[str]:
    program.write_text(source)
    return subprocess.Popen(
        [sys.executable, "-u", str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )


ENDS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


def test_the_example_creates_publishes_consumes_and_ends_in_order_on_a_signal(
    broker: Where, unique: str, tmp_path: Path
) -> None:
    source = QUICKSTART.read_text()
    assert len(source.splitlines()) <= LINES_MAX
    for text, ours in (
        ('"amqp://guest:guest@localhost:5673/"', json.dumps(broker.broker)),
        ('"http://localhost:15673"', repr(broker.management)),
        ('"orders"', json.dumps(unique)),
    ):
        assert text in source
        source = source.replace(text, ours)
    for number, status in ENDS:  # the second run finds the group, and nothing of the first in its queues
        with started(tmp_path / "quickstart.py", source) as process:
            try:
                assert process.stdout is not None
                received = [process.stdout.readline().split() for _ in range(10)]
                process.send_signal(number)
                out, err = process.communicate(timeout=GUARD_S)
            finally:
                process.kill()
        assert (out, err, process.returncode) == ("", "", status)
        for account in range(3):
            numbers = [int(number) for key, _, number in received if key == f"account-{account}"]
            assert numbers == list(range(account, 10, 3))


MEMBER = """
import asyncio
from lbgroup import Group, Member, MemberSettings, Publisher, connect_admin, run

async def handle(message):
    print("begins")
    await asyncio.sleep({seconds})
    print("ends")

async def main():
    async with connect_admin({broker!r}, {management!r}) as admin:
        await admin.create_group(Group({group!r}, queue_count=1))
    async with Publisher({broker!r}, group={group!r}) as publisher:
        await publisher.publish(key="k", body=b"1")
    async with Member(MemberSettings(broker={broker!r}, group={group!r}, shutdown_grace_s=60), handle) as member:
        await member.run()

run(main())
"""


@pytest.mark.parametrize(("number", "status"), ENDS)
async def test_a_signal_lets_the_call_that_runs_end_and_nothing_is_delivered_again(
    broker: Where, unique: str, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    source = MEMBER.format(broker=broker.broker, management=broker.management, group=unique, seconds=0.5)
    with started(tmp_path / "member.py", source) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begins\n"
            process.send_signal(number)
            out, err = process.communicate(timeout=GUARD_S)
        finally:
            process.kill()
    assert (out, err, process.returncode) == ("ends\n", "", status)
    async with lbgroup.connect_admin(broker.broker, broker.management) as admin:
        await admin.delete_group(unique)  # refused while a message or a consumer is left


def test_a_second_signal_ends_a_program_at_once(broker: Where, unique: str, tmp_path: Path) -> None:
    source = MEMBER.format(broker=broker.broker, management=broker.management, group=unique, seconds=3600)
    with started(tmp_path / "member.py", source) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begins\n"
            process.send_signal(signal.SIGINT)
            while process.poll() is None:  # the first has to be received before the second is one
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.5)
            _, err = process.communicate(timeout=GUARD_S)
        finally:
            process.kill()
    assert (err, process.returncode) == ("", -signal.SIGINT)


def test_a_program_that_ends_by_itself_has_its_result_and_its_errors() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    async def result() -> int:
        return 7

    async def failure() -> None:
        raise ValueError("of the program")

    async def cancelled() -> None:
        raise asyncio.CancelledError

    assert lbgroup.run(result()) == 7
    with pytest.raises(ValueError, match="of the program"):
        lbgroup.run(failure())
    with pytest.raises(asyncio.CancelledError):
        lbgroup.run(cancelled())
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
