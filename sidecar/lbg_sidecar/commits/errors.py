"""What can go wrong with a commit log when it is opened: in use, of a newer version, or not to be written."""

from __future__ import annotations

from ..errors import MemberError


class CommitsError(MemberError):
    pass
