"""Resource quantities (Kubernetes API: "Quantity"), as far as amounts of bytes need them."""

from __future__ import annotations

import re
from decimal import Decimal

from ..errors import ManifestError

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)([kMGT]|[KMGT]i)?")
_BYTES = {
    None: 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def bytes_in(field: str, quantity: str | int) -> int:
    """`quantity` in bytes, rounded down. Raises ManifestError."""
    found = _QUANTITY.fullmatch(str(quantity))
    if found is None:
        raise ManifestError(field, f"{quantity!r} is no amount of bytes: say it as 500M or 2Gi")
    return int(Decimal(found[1]) * _BYTES[found[2]])


def quantity_of(size_bytes: int) -> str:
    """As people write it: in the largest unit that it is a whole number of."""
    units = ((unit, _BYTES[unit]) for unit in ("Ti", "Gi", "Mi", "Ki"))
    found = next(((unit, size) for unit, size in units if size_bytes % size == 0), ("", 1))
    return f"{size_bytes // found[1]}{found[0]}"
