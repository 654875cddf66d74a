"""State of the path into the group, and the remedies in its report."""

from __future__ import annotations

import pytest

from lbg_core.client import (
    AccessRefused,
    AuthenticationError,
    ConnectError,
    ConnectionLost,
    ConnectRefused,
    CredentialsUnreadable,
    TlsError,
)
from lbg_sidecar.member import ConnectionStatus
from lbg_sidecar.process.lifecycle import remedy


def test_the_last_error_stays_until_the_member_is_in_the_group_again() -> None:
    now = 0.0
    contact = ConnectionStatus(wall_s=lambda: now)
    now = 10.0
    contact.failed(ConnectError("refused"))
    assert contact.describe() == {"joined": False, "since": "1970-01-01T00:00:00Z", "last_error": "refused"}
    now = 20.0
    contact.joined()
    assert contact.describe() == {"joined": True, "since": "1970-01-01T00:00:20Z", "last_error": None}
    now = 30.0
    contact.parted("the connection was lost")
    now = 40.0
    contact.failed(AuthenticationError("login refused"))
    assert contact.describe()["since"] == "1970-01-01T00:00:30Z"
    assert contact.error == "login refused"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ConnectError("h:5672: Connection refused"), "is the broker up, and is LBG_BROKER its address?"),
        (AuthenticationError("h: 403"), "LBG_PASSWORD_FILE"),
        (CredentialsUnreadable("h: /run/user: No such file"), "LBG_USERNAME_FILE"),
        (TlsError("h: the broker's certificate: self-signed"), "LBG_CAFILE"),
        (ConnectRefused("h: 530 NOT_ALLOWED", 530, "NOT_ALLOWED"), "create the virtual host"),
        (AccessRefused(403, "ACCESS_REFUSED"), "`lbg group create orders …`"),
    ],
)
def test_each_error_is_one_line_with_what_to_do(error: Exception, advice: str) -> None:
    line = remedy(error, group="orders")
    assert line.startswith(str(error))
    assert advice in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "error", [ConnectRefused("h: 541 INTERNAL_ERROR", 541, "INTERNAL_ERROR"), ConnectionLost("gone")]
)
def test_where_nobody_knows_what_to_do_nothing_is_advised(error: Exception) -> None:
    assert remedy(error, group="orders") == str(error)
