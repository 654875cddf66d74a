"""Consumers in mode Sessions: by number, with names that stay, and fewer only when sessions are over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lbg_operator.kube.api import ClusterError
from lbg_operator.kube.kinds import DEPLOYMENT, GROUP, POD, STATEFUL_SET, Kind
from testing.operator.operated import SETTLED_S, Place
from testing.operator.operated_sessions import SessionsBroker, sessions_place
from testing.virtual_time import in_virtual_time

SESSIONS = {"mode": "Sessions", "queues": {"count": 1}}


async def ready(place: Place, broker: SessionsBroker, replicas: int = 3, **spec: Any) -> None:
    await place.ready(**SESSIONS, replicas=replicas, **spec)
    await asyncio.sleep(40)
    assert sorted(broker.sessions) == [f"orders-lbg-{ordinal}" for ordinal in range(replicas)]


def replicas(place: Place) -> int:
    return int(place.seen(STATEFUL_SET, "orders-lbg")["spec"]["replicas"])


@in_virtual_time
async def test_consumers_are_a_stateful_set_whose_pods_are_called_as_their_sessions() -> None:
    place, broker = sessions_place()
    async with place:
        await ready(place, broker)
        assert not place.has(DEPLOYMENT)
        assert place.conditions()["Scaled"] == ("True", "AsAsked")
        assert place.status()["replicas"] == 3
        assert [one["state"] for one in place.status()["sessions"]] == ["live"] * 3


@in_virtual_time
async def test_fewer_consumers_wait_until_their_sessions_are_worked_off() -> None:
    place, broker = sessions_place()
    async with place:
        await ready(place, broker)
        broker.works = False
        place.edit_group({"replicas": 1})
        await asyncio.sleep(90)
        assert replicas(place) == 3
        assert sorted(broker.told) == ["orders-lbg-1", "orders-lbg-2"], "each once"
        assert place.conditions()["Scaled"] == ("False", "SessionsEnding")
        assert "orders-lbg-2 (closing, 6 messages)" in place.message("Scaled")
        assert place.reasons().count("SessionClosed") == 2
        broker.works = True
        await asyncio.sleep(SETTLED_S)
        assert replicas(place) == 1
        assert broker.pods.gone == ["orders-lbg-2", "orders-lbg-1"]
        assert list(broker.sessions) == ["orders-lbg-0"]
        assert place.conditions()["Scaled"] == ("True", "AsAsked")


@in_virtual_time
async def test_nobody_goes_for_as_long_as_nobody_knows_what_sessions_have() -> None:
    place, broker = sessions_place()
    async with place:
        await ready(place, broker)
        broker.is_deaf = True
        place.edit_group({"replicas": 1})
        await asyncio.sleep(600)
        assert replicas(place) == 3
        assert place.conditions()["Scaled"] == ("Unknown", "SessionsUnknown")
        broker.is_deaf = False
        await asyncio.sleep(60)
        assert replicas(place) == 1


@in_virtual_time
async def test_more_consumers_ask_nobody() -> None:
    place, broker = sessions_place()
    async with place:
        await ready(place, broker)
        broker.is_deaf = True
        place.edit_group({"replicas": 5})
        await asyncio.sleep(2)
        assert replicas(place) == 5


@in_virtual_time
async def test_a_consumer_that_is_wanted_again_while_its_session_ends_is_made_anew() -> None:
    place, broker = sessions_place()
    async with place:
        await ready(place, broker)
        broker.works = False
        place.edit_group({"replicas": 2})
        await asyncio.sleep(SETTLED_S)
        assert broker.told == ["orders-lbg-2"]
        place.edit_group({"replicas": 3})
        await asyncio.sleep(SETTLED_S)
        assert broker.pods.gone == []
        broker.works = True
        await asyncio.sleep(60)
        assert broker.pods.gone == ["orders-lbg-2"], "one that left at its End-of-Session stays out for ever"
        assert sorted(broker.sessions) == ["orders-lbg-0", "orders-lbg-1", "orders-lbg-2"]
        assert not broker.sessions["orders-lbg-2"].closing
        assert replicas(place) == 3


@pytest.mark.parametrize("delay_s", [1.0, 3.0, 7.0])
@in_virtual_time
async def test_the_consumer_that_was_made_anew_is_left_alone_by_an_operator_that_hears_of_it_late(
    delay_s: float,
) -> None:
    place, broker = sessions_place()
    async with place:
        await ready(place, broker)
        broker.works = False
        place.edit_group({"replicas": 2})
        await asyncio.sleep(SETTLED_S)
        place.edit_group({"replicas": 3})
        await asyncio.sleep(SETTLED_S)
        place.delay_s = delay_s
        broker.works = True
        await asyncio.sleep(90)
        assert broker.pods.gone == ["orders-lbg-2"]


@in_virtual_time
async def test_a_session_that_began_when_its_pod_was_about_to_go_gets_its_pod_back() -> None:
    place, broker = sessions_place()
    async with place:
        await ready(place, broker)
        place.edit_group({"replicas": 2})
        await asyncio.sleep(SETTLED_S)
        assert replicas(place) == 2
        broker.begin("orders-lbg-2")
        broker.works = False
        await asyncio.sleep(60)
        assert replicas(place) == 3
        broker.works = True
        await asyncio.sleep(60)
        assert replicas(place) == 2
        assert sorted(broker.sessions) == ["orders-lbg-0", "orders-lbg-1"]


@in_virtual_time
async def test_an_operator_that_restarts_in_between_goes_on() -> None:
    place, broker = sessions_place()
    async with place:
        await ready(place, broker)
        broker.works = False
        place.edit_group({"replicas": 1})
        await asyncio.sleep(SETTLED_S)
        await place.restart()
        await asyncio.sleep(SETTLED_S)
        assert replicas(place) == 3
        assert len(broker.told) == 2
        broker.works = True
        await asyncio.sleep(60)
        assert replicas(place) == 1


@in_virtual_time
async def test_a_session_without_its_pod_is_called_stranded_when_that_lasts() -> None:
    place, broker = sessions_place()
    async with place:
        await ready(place, broker)
        at = place.operator.world.wall_clock().timestamp() if place.operator else 0.0
        broker.starts = False
        broker.pods.all = dict
        for session in broker.sessions.values():
            session.away_since = at
        await asyncio.sleep(40)
        assert place.conditions()["Degraded"] == ("False", "AsExpected")
        await asyncio.sleep(60)
        assert place.conditions()["Degraded"] == ("True", "SessionsStranded")
        assert "session orders-lbg-0 has 5 messages and no consumer" in place.message("Degraded")


@in_virtual_time
async def test_pods_that_do_not_come_up_are_told() -> None:
    place, broker = sessions_place()
    async with place:
        await ready(place, broker)
        waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
        status = {"containerStatuses": [{"name": "app", "state": {"waiting": waiting}}]}
        place.cluster.edit(POD, "shop", "orders-lbg-1", {"status": status})
        await asyncio.sleep(SETTLED_S)
        assert place.conditions()["Degraded"] == ("True", "PodsFailing")
        assert "orders-lbg-1: app: ImagePullBackOff: no such image" in place.message("Degraded")


@in_virtual_time
async def test_a_pod_that_gets_no_node_or_no_volume_is_told_when_that_lasts() -> None:
    place, broker = sessions_place()
    async with place:
        await ready(place, broker)
        assert place.operator is not None
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "pod has unbound immediate PersistentVolumeClaims",
            "lastTransitionTime": place.operator.world.timestamp,
        }
        place.cluster.edit(POD, "shop", "orders-lbg-1", {"status": {"conditions": [condition]}})
        await asyncio.sleep(15)
        assert place.conditions()["Degraded"] == ("False", "AsExpected")
        await asyncio.sleep(15)
        assert place.conditions()["Degraded"] == ("True", "PodsFailing")
        assert "orders-lbg-1: Unschedulable: pod has unbound" in place.message("Degraded")


@in_virtual_time
async def test_a_group_that_is_deleted_takes_its_stateful_set_along() -> None:
    place, broker = sessions_place()
    async with place:
        await ready(place, broker)
        deleted: list[str] = []
        place.cluster.fail = lambda verb, kind, name: deleted.append(kind.kind) if verb == "delete" else None
        broker.waiting.clear()
        for session in broker.sessions.values():
            session.messages = 0
        place.delete_group()
        await asyncio.sleep(60)
        assert "StatefulSet" in deleted
        assert not place.has(GROUP)


@in_virtual_time
async def test_a_mark_that_cannot_be_written_keeps_its_session_open() -> None:
    place, broker = sessions_place()
    async with place:
        await ready(place, broker)

        def refuse(verb: str, kind: Kind, name: str) -> None:
            if kind is POD:
                raise ClusterError("patch Pod", "connection reset")

        place.cluster.fail = refuse
        place.edit_group({"replicas": 1})
        await asyncio.sleep(30)
        assert broker.told == []
        place.cluster.fail = lambda verb, kind, name: None
        await asyncio.sleep(90)
        assert replicas(place) == 1
