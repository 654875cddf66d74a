"""Lines of actions."""

from __future__ import annotations

from dataclasses import fields
from string import Formatter

import pytest

from lbg_core.admin.actions import Action, DeleteQueue, PutUser
from lbg_core.admin.amqp import AmqpAdmin
from lbg_core.admin.management import ManagementApi, ManagementSettings
from lbg_core.admin.management_admin import ManagementAdmin
from lbg_core.client import ConnectionSettings


@pytest.mark.parametrize("kind", [one for one in Action.__subclasses__() if "text" in vars(one)])
def test_the_line_of_an_action_is_of_its_fields(kind: type[Action]) -> None:
    named = {name.split(".")[1] for _, name, _, _ in Formatter().parse(kind.text) if name}
    assert named <= {field.name for field in fields(kind)}
    assert named


async def test_an_action_of_the_other_half_is_refused() -> None:
    amqp = AmqpAdmin([ConnectionSettings()])
    api, lock = ManagementApi(ManagementSettings.parse("http://127.0.0.1")), amqp.locks.of_permissions
    management = ManagementAdmin(api, vhost="/", lock_permissions=lock)
    with pytest.raises(TypeError, match="PutUser"):
        await amqp.perform(PutUser("app", "secret", "orders"))
    with pytest.raises(TypeError, match="DeleteQueue"):
        await management.perform(DeleteQueue("lbg.orders.q.0"))
