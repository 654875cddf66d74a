"""What can end the sidecar before it has begun.

MemberError
└── ConfigurationError   a setting is wrong, unknown or missing: its name, its value and what to do
"""

from __future__ import annotations

from ..errors import MemberError


class ConfigurationError(MemberError):
    """One line for a person. It holds the value of a setting only where that cannot be a secret."""
