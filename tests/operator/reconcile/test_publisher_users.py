"""A user of its own for the publishers of a group, by its manifest."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from typing import Any

from lbg_core.group import Names, Publishers
from lbg_operator.kube.kinds import DEPLOYMENT, SECRET
from testing.operator.operated import ORDERS, Place
from testing.virtual_time import in_virtual_time

GROUP_NAME = "shop-orders"
USER = f"{GROUP_NAME}.publisher"
SECRET_NAME = f"{ORDERS.name}-lbg-publisher"
CHECKED_S = 700.0
"""By then the operator has compared the group with the broker again."""


def login(place: Place, name: str = SECRET_NAME) -> dict[str, str]:
    data = place.seen(SECRET, name, ORDERS.namespace)["data"]
    return {field: b64decode(value).decode() for field, value in data.items()}


def sidecar(place: Place) -> dict[str, Any]:
    pod = place.seen(DEPLOYMENT)["spec"]["template"]["spec"]
    containers = [*pod.get("initContainers", ()), *pod["containers"]]
    (found,) = (one for one in containers if one["name"] == "lbg-sidecar")
    return found


@in_virtual_time
async def test_publishers_of_a_new_group_have_a_user_and_a_secret_of_their_own() -> None:
    async with Place() as place:
        await place.ready()
        assert place.conditions()["Ready"] == ("True", "Served")
        assert place.broker.publishers[GROUP_NAME] == Publishers(USER, members_publish=True)
        given = login(place)
        assert (given["username"], given["password"]) == (USER, place.broker.passwords[USER])
        assert given["password"] != login(place, f"{ORDERS.name}-lbg")["password"]
        assert place.status()["publisherSecretName"] == SECRET_NAME
        assert Names(GROUP_NAME).record in place.broker.queues


@in_virtual_time
async def test_a_group_of_one_user_gets_the_other_without_a_restart_of_consumers() -> None:
    async with Place() as place:
        await place.ready(publisherUser="Shared")
        before = place.seen(DEPLOYMENT)["spec"]
        assert "publisherSecretName" not in place.status()
        place.edit_group({"publisherUser": "Additional"})
        await asyncio.sleep(5)
        assert place.broker.publishers[GROUP_NAME] == Publishers(USER, members_publish=True)
        place.edit_group({"publisherUser": "Exclusive"})
        await asyncio.sleep(5)
        assert place.broker.publishers[GROUP_NAME] == Publishers(USER, members_publish=False)
        assert "lbg\\\\.shop\\\\-orders|" not in place.broker.permissions[GROUP_NAME].write
        assert place.seen(DEPLOYMENT)["spec"] == before


@in_virtual_time
async def test_nothing_is_written_to_a_broker_that_has_both_users() -> None:
    async with Place() as place:
        await place.ready(publisherUser="Exclusive")
        count = len(place.broker.performed)
        await asyncio.sleep(CHECKED_S)
        assert place.broker.performed[count:] == []


@in_virtual_time
async def test_a_deleted_secret_of_publishers_is_a_new_password_and_members_keep_theirs() -> None:
    async with Place() as place:
        await place.ready(publisherUser="Exclusive")
        before, members = login(place), login(place, f"{ORDERS.name}-lbg")
        place.cluster.take_away(SECRET, ORDERS.namespace, SECRET_NAME)
        await asyncio.sleep(30)
        after = login(place)
        assert after["password"] != before["password"]
        assert place.broker.passwords[USER] == after["password"]
        assert login(place, f"{ORDERS.name}-lbg") == members


@in_virtual_time
async def test_the_sidecar_has_the_login_only_where_it_publishes() -> None:
    async with Place() as place:
        await place.ready(publisherUser="Exclusive")
        assert "lbg-publisher" not in {one["name"] for one in sidecar(place)["volumeMounts"]}
        place.edit_group({"consumer": {"sidecar": {"publishes": True}}})
        await asyncio.sleep(5)
        container = sidecar(place)
        (mount,) = (one for one in container["volumeMounts"] if one["name"] == "lbg-publisher")
        given = {one["name"]: one.get("value") for one in container["env"]}
        assert given["LBG_PUBLISHER_USERNAME_FILE"] == f"{mount['mountPath']}/username"
        assert given["LBG_PUBLISHER_PASSWORD_FILE"] == f"{mount['mountPath']}/password"
        volumes = place.seen(DEPLOYMENT)["spec"]["template"]["spec"]["volumes"]
        assert {"name": "lbg-publisher", "secret": {"secretName": SECRET_NAME}} in volumes
