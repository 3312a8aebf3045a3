"""Formatting of numbers, states and text from outside.

Sizes are in powers of 1024 (MiB, GiB), as memory is sold and as `worker --check` prints it.
"""

from datetime import datetime

from rich.text import Text

from shared.terminal_text import printable

NO_VALUE = "-"
"""Placeholder for a missing value."""

_STYLES = {
    "ready": "green", "warm": "green", "running": "green",
    "starting": "yellow", "warming": "yellow", "loading": "yellow", "downloading": "yellow",
    "draining": "yellow", "degraded": "yellow", "restarting": "yellow", "soft": "yellow",
    "available": "dim",
    "unhealthy": "red", "failed": "red", "unavailable": "red", "stopped": "red", "hard": "red",
}  # fmt: skip

_MIB = 2**20
_GIB = 2**30
_MINUTE_S = 60
_HOUR_S = 3600
_DAY_S = 86400


def plain_text(text: str, style: str = "") -> Text:
    """Return text from outside without markup; escape sequences are removed."""
    return Text(printable(text), style=style)


def style_of(state: str) -> str:
    """Return the colour of a state (of cluster, worker, engine, ...) or of a memory pressure."""
    return _STYLES.get(state, "")


def state_text(name: str) -> Text:
    return plain_text(name, style_of(name))


def size(count_bytes: int) -> str:
    """12 MiB, 8.1 GiB, 17 GiB."""
    unit, name = _unit(count_bytes)
    return f"{_in_unit(count_bytes, unit)} {name}"


def share_of_size(count_bytes: int, limit_bytes: int) -> str:
    """8.1/14 GiB; only the size if there is no limit."""
    if not limit_bytes:
        return size(count_bytes)
    unit, name = _unit(max(count_bytes, limit_bytes))
    return f"{_in_unit(count_bytes, unit)}/{_in_unit(limit_bytes, unit)} {name}"


def duration(seconds: float) -> str:
    """12s, 3m05s, 1h02m, 2d04h."""
    whole = max(0, int(seconds))
    if whole < _MINUTE_S:
        return f"{whole}s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S}m{whole % _MINUTE_S:02d}s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S}h{whole % _HOUR_S // _MINUTE_S:02d}m"
    return f"{whole // _DAY_S}d{whole % _DAY_S // _HOUR_S:02d}h"


def short_time(milliseconds: float) -> str:
    """0.8ms, 12ms, 1.2s, 3m05s."""
    if milliseconds < 9.95:
        return f"{milliseconds:.1f}ms" if milliseconds else "0ms"
    if milliseconds < 999.5:
        return f"{milliseconds:.0f}ms"
    seconds = milliseconds / 1000
    return f"{seconds:.1f}s" if seconds < _MINUTE_S - 0.05 else duration(round(seconds))


def local_time(at: float) -> str:
    """Return a Unix time as local date and time."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")


def rate(per_s: float) -> str:
    """Tokens per second: 0, 7.5, 134."""
    return f"{per_s:.1f}" if 0 < per_s < 9.95 else f"{per_s:.0f}"


def count(number: int, noun: str) -> str:
    """1 controller, 2 controllers."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _unit(count_bytes: int) -> tuple[int, str]:
    return (_GIB, "GiB") if count_bytes >= 999.5 * _MIB else (_MIB, "MiB")


def _in_unit(count_bytes: int, unit: int) -> str:
    value = count_bytes / unit
    return f"{value:.1f}" if unit == _GIB and value < 9.95 else f"{value:.0f}"
