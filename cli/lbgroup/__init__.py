"""Front door of LBG: everything that a program needs to create a group, publish to it and consume from it.

::

    from lbgroup import Group, Member, MemberSettings, Message, Publisher, connect_admin, run

`examples/quickstart.py` uses all of them. A name is imported when it is first used, so that `import lbgroup` and
`lbg --help` stay fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lbg_core.admin import GroupAdmin, connect_admin
    from lbg_core.group import GroupSpec as Group
    from lbg_core.publisher import GroupPublisher as Publisher
    from lbg_sidecar import ACK, Member, MemberSettings, Message, Verdict, drop, retry
    from lbgroup.runner import run

__all__ = [
    "ACK",
    "Group",
    "GroupAdmin",
    "Member",
    "MemberSettings",
    "Message",
    "Publisher",
    "Verdict",
    "connect_admin",
    "drop",
    "retry",
    "run",
]

_LAZY = {
    "ACK": "lbg_sidecar:ACK",
    "Group": "lbg_core.group:GroupSpec",
    "GroupAdmin": "lbg_core.admin:GroupAdmin",
    "Member": "lbg_sidecar:Member",
    "MemberSettings": "lbg_sidecar:MemberSettings",
    "Message": "lbg_sidecar:Message",
    "Publisher": "lbg_core.publisher:GroupPublisher",
    "Verdict": "lbg_sidecar:Verdict",
    "connect_admin": "lbg_core.admin:connect_admin",
    "drop": "lbg_sidecar:drop",
    "retry": "lbg_sidecar:retry",
    "run": "lbgroup.runner:run",
}

if not TYPE_CHECKING:  # a type checker reads the imports above, and reports names that do not exist

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _LAZY[name].partition(":")
        value = getattr(import_module(module), attribute)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
