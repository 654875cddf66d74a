"""No credentials in what is shown: the last fence behind settings and errors that hold none to begin with."""

from __future__ import annotations

import re

_PASSWORD_IN_URL = re.compile(r"(\w+://[^\s:/@\"]*):[^\s/\"]*@")


def redacted(text: str) -> str:
    return _PASSWORD_IN_URL.sub(r"\1:***@", text)
