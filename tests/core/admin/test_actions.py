"""Lines of actions."""

from __future__ import annotations

from dataclasses import fields
from string import Formatter

import pytest

from lbg_core.admin.actions import Action


@pytest.mark.parametrize("kind", [one for one in Action.__subclasses__() if "text" in vars(one)])
def test_the_line_of_an_action_is_of_its_fields(kind: type[Action]) -> None:
    named = {name.split(".")[1] for _, name, _, _ in Formatter().parse(kind.text) if name}
    assert named <= {field.name for field in fields(kind)}
    assert named
