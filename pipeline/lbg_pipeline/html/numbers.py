"""Numbers as text, with three figures and a unit; tables as lines of text. Unknown is not zero."""

from __future__ import annotations

from datetime import UTC, datetime

UNKNOWN = "–"
_TIMES = (
    (86_400_000_000, "d"),
    (3_600_000_000, "h"),
    (60_000_000, "min"),
    (1_000_000, "s"),
    (1_000, "ms"),
    (1, "µs"),
)
_COUNTS = ((10**12, " T"), (10**9, " G"), (10**6, " M"), (10**3, " k"))
_COUNTED_SINGLY = 10_000
_SIZES = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))


def three_figures(value: float) -> str:
    """`value` with three figures that count, or all of those before the point."""
    size = abs(value)
    if 0 < size < 0.0995:
        return f"{value:.3g}"
    places = 0 if size >= 99.95 or value == int(value) else 1 if size >= 9.995 else 2
    return f"{value:,.{places}f}"


def _scaled(value: float, units: tuple[tuple[int, str], ...]) -> tuple[float, str] | None:
    for factor, unit in units:
        if abs(value) >= factor * 0.9995:
            return value / factor, unit
    return None


def duration(value_us: float | None) -> str:
    if value_us is None:
        return UNKNOWN
    if value_us == 0:
        return "0"
    number, unit = _scaled(value_us, _TIMES) or (value_us, "µs")
    return f"{three_figures(number)} {unit}"


def size(value_bytes: float | None) -> str:
    if value_bytes is None:
        return UNKNOWN
    number, unit = _scaled(value_bytes, _SIZES) or (value_bytes, "B")
    return f"{three_figures(number)} {unit}"


def count(value: float | None) -> str:
    """From ten thousand on in thousands or more: `12.3 k`, `4.56 M`."""
    if value is None:
        return UNKNOWN
    number, unit = (abs(value) >= _COUNTED_SINGLY and _scaled(value, _COUNTS)) or (value, "")
    return f"{three_figures(number)}{unit}"


def whole(value: int | None) -> str:
    """Every digit: for numbers that are compared or added up."""
    return UNKNOWN if value is None else f"{value:,}"


def rate(value_hz: float | None) -> str:
    return UNKNOWN if value_hz is None else f"{count(value_hz)}/s"


def share(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if 0 < value < 0.001:
        return "< 0.1 %"
    return f"{value:.1%}".replace("%", " %")


def ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def moment(value_us: int | None, *, with_date: bool = True) -> str:
    """UTC, to the second."""
    if value_us is None:
        return UNKNOWN
    return datetime.fromtimestamp(value_us / 1e6, UTC).strftime(
        "%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S"
    )
