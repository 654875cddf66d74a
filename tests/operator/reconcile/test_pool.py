"""One administrator's connection for each broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from lbg_core.admin.live import LiveAdmin
from lbg_operator.reconcile.broker_pool import Access, BrokerPool
from testing.broker.embedded import PASSWORD, USER, EmbeddedBroker


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[BrokerPool]:
    pool = BrokerPool(tmp_path)
    yield pool
    await pool.close()


def files_in(directory: Path) -> list[Path]:
    return list(directory.glob("*.pem"))


def access_of(broker: EmbeddedBroker) -> Access:
    management = f"http://127.0.0.1:{broker.management_port}"
    return Access((f"amqp://127.0.0.1:{broker.port}",), (management,), USER, PASSWORD)


async def test_it_is_the_same_one_until_the_access_changes(pool: BrokerPool) -> None:
    access = Access(("amqp://127.0.0.1:1",), (), "u", "p")
    first = await pool.admin("main", access)
    assert await pool.admin("main", replace(access)) is first
    assert await pool.admin("other", access) is not first
    assert await pool.admin("main", replace(access, password="q")) is not first


@pytest.mark.parametrize("uri", ["http://127.0.0.1", "amqp://h:port"])
async def test_an_address_that_is_none_is_a_value_error(pool: BrokerPool, uri: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        await pool.admin("main", Access((uri,), (), "u", "p"))


def secured(authority: str, **changes: str) -> Access:
    return replace(
        Access(("amqps://127.0.0.1:1",), ("https://127.0.0.1:2",), "u", "p", ca=authority), **changes
    )


async def test_an_authority_is_a_file_for_as_long_as_it_is_needed(pool: BrokerPool, tmp_path: Path) -> None:
    first, second = (trustme.CA().cert_pem.bytes().decode() for _ in range(2))
    await pool.admin("main", secured(first))
    assert [one.read_text() for one in files_in(tmp_path)] == [first]
    await pool.admin("main", secured(first))
    assert [one.read_text() for one in files_in(tmp_path)] == [first]
    await pool.admin("main", secured(second))
    assert [one.read_text() for one in files_in(tmp_path)] == [second]
    await pool.drop("main")
    assert files_in(tmp_path) == []


async def test_an_access_that_cannot_be_used_leaves_no_file(pool: BrokerPool, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r".+"):
        await pool.admin("main", secured("no certificate"))
    assert files_in(tmp_path) == []


@pytest.mark.process
async def test_a_login_is_checked_on_both_doors(pool: BrokerPool, tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        admin = await pool.admin("main", access_of(broker))
        assert not (await admin.check()).is_rabbitmq
        await pool.drop("main")
        assert await pool.admin("main", access_of(broker)) is not admin


@pytest.mark.process
async def test_silent_brokers_together_do_not_hold_up_the_end_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_operator.reconcile.broker_pool.CLOSE_LIMIT_S", 0.5)
    close, closing, together = LiveAdmin.close, 0, 0

    async def counted(admin: LiveAdmin) -> None:
        nonlocal closing, together
        closing += 1
        together = max(together, closing)
        try:
            await close(admin)
        finally:
            closing -= 1

    monkeypatch.setattr(LiveAdmin, "close", counted)
    pool = BrokerPool(tmp_path)
    with EmbeddedBroker(tmp_path / "a") as one, EmbeddedBroker(tmp_path / "b") as other:
        for broker in (one, other):
            await (await pool.admin(broker.port, access_of(broker))).check()
            broker.freeze()
        await pool.close()
        for broker in (one, other):
            broker.thaw()
        assert (together, closing) == (2, 0), "one after the other"
        await asyncio.sleep(0.1)
