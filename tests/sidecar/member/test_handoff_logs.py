"""Log lines of a handoff, on both sides, from members on a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lbg_sidecar import Member
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.member.balance import active, in_balance
from testing.member.group_load import Judge, group_spec, load_on, under_load
from testing.member.place import Place
from testing.member.process import MemberProcess
from testing.waiting import until


async def test_a_move_a_leave_and_a_kill_each_give_one_line_with_their_why(
    embedded: EmbeddedBroker, unique: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = group_spec(unique)
    await declare_group(embedded.url, spec)
    place = Place("embedded", embedded.url, spec)
    caplog.set_level("INFO", "lbg.member")

    def lines(event: str, member: str) -> dict[int, dict[str, Any]]:
        """By queue; there is one of a queue."""
        told = [vars(record).get("fields", {}) for record in caplog.records]
        found = [line for line in told if (line.get("event"), line.get("member")) == (event, member)]
        assert len({line["queue"] for line in found}) == len(found)
        return {line["queue"]: line for line in found}

    def course(line: dict[str, Any]) -> tuple[object, object, object]:
        return line["from"], line["to"], line["why"]

    judge = Judge()
    async with (
        load_on(place.url, spec.name) as load,
        Member(place.settings("a"), judge.handler("a")) as a,
        under_load(load),
    ):
        await until(lambda: len(active(a)) == 4)
        assert {course(line) for line in lines("taken_over", "a").values()} == {(None, 0, "unserved")}
        caplog.clear()

        async with Member(place.settings("b"), judge.handler("b")) as b:
            await until(lambda: in_balance(a, b) and len(active(b)) == 2)
            given, taken = lines("handed_over", "a"), lines("taken_over", "b")
            assert given.keys() == taken.keys() == active(b)
            for line in (*given.values(), *taken.values()):
                assert course(line) == (0, 1, "rebalance")
            for line in taken.values():
                assert line["pause_seconds"] is None or 0 < line["pause_seconds"] < 3
            caplog.clear()
        await until(lambda: len(active(a)) == 4)
        given, taken = lines("handed_over", "b"), lines("taken_over", "a")
        assert given.keys() == taken.keys()
        for line in (*given.values(), *taken.values()):
            assert course(line) == (1, 0, "leave")

        killed = MemberProcess("c", tmp_path, **place.told())
        await killed.start()
        try:
            await until(lambda: len(active(a)) == 2, what="two queues to be handed to c")
            await until(lambda: len([e for e in killed.events if e.kind == "taken_over"]) == 2)
            await until(
                lambda: [one["served_by"] for one in a.state()["queues"]].count(1) == 2, what="a to know"
            )
            caplog.clear()
            await killed.kill()
        finally:
            await killed.close()
        await until(lambda: len(active(a)) == 4)
        queues = {event.fields["queue"] for event in killed.events if event.kind == "taken_over"}
        taken = lines("taken_over", "a")
        assert taken.keys() == queues
        for line in taken.values():
            assert course(line) == (1, 0, "lost")
            assert line["pause_seconds"] is None
