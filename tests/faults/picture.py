"""A campaign as a picture: who was in trouble when, and what the streams had of it."""

from collections.abc import Sequence
from html import escape

from tests.faults.evidence import Injection

_LEFT, _WIDTH, _ROW, _PANEL, _GAP = 110, 1200, 18, 160, 34
_TICKS = (5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
_COLOURS = (
    ("killed", "#c0392b", ("kill",)),
    ("stopped", "#e67e22", ("sleeps", "stop")),
    ("the line", "#2471a3", ("cut off", "connection", "line")),
    ("the clock", "#7d3c98", ("clock",)),
    ("leaves", "#1e8449", ("leaves", "lame duck")),
)


def drawn(
    injections: Sequence[Injection],
    pauses: Sequence[tuple[float, float]],
    seconds: float,
) -> str:
    """The picture, as SVG: a row for each process with its troubles, and below how long streams
    stood still, each dot a pause at the time of its end.

    Args:
        injections: with times from the begin of the campaign on.
        pauses: when each ended, and how long it was, in seconds.
        seconds: how long all of it took.
    """
    members = sorted({target for injection in injections for target in injection.targets})
    scale = (_WIDTH - _LEFT - 20) / max(seconds, 1.0)
    below = _GAP + _ROW * len(members) + 24
    bottom = below + _PANEL
    most = max([1.0, *(length for _, length in pauses)])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{bottom + 40}"'
        ' font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]

    def x(at: float) -> float:
        return round(_LEFT + scale * at, 1)

    def text(at_x: float, at_y: float, what: str, anchor: str = "start") -> None:
        parts.append(f'<text x="{at_x}" y="{at_y}" text-anchor="{anchor}">{escape(what)}</text>')

    def line(x1: float, y1: float, x2: float, y2: float) -> None:
        parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#ddd"/>')

    for place, (name, colour, _) in enumerate(_COLOURS):
        legend = _LEFT + 110 * place
        parts.append(f'<rect x="{legend}" y="8" width="10" height="10" fill="{colour}"/>')
        text(legend + 15, 17, name)
    step = next((tick for tick in _TICKS if seconds / tick <= 15), _TICKS[-1])
    for tick in range(0, int(seconds) + 1, step):
        line(x(tick), _GAP, x(tick), bottom)
        text(x(tick), bottom + 15, f"{tick} s", "middle")
    for place, member in enumerate(members):
        row = _GAP + _ROW * place
        text(_LEFT - 8, row + 13, member, "end")
        for injection in injections:
            if member in injection.targets:
                until = min(injection.until, seconds)
                width = max(2.0, round(scale * (until - injection.at), 1))
                title = f"{injection.kind}, {injection.at:.1f} to {until:.1f} s"
                parts.append(
                    f'<rect x="{x(injection.at)}" y="{row + 3}" width="{width}" height="12"'
                    f' fill="{_colour(injection.kind)}"><title>{escape(title)}</title></rect>'
                )
    text(_LEFT + 4, below - 5, "how long streams stood still")
    for share in (0.0, 0.5, 1.0):
        height = round(bottom - _PANEL * share, 1)
        line(_LEFT, height, _WIDTH - 20, height)
        text(_LEFT - 8, height + 4, f"{most * share:.1f} s", "end")
    parts += [
        f'<circle cx="{x(at)}" cy="{bottom - _PANEL * length / most:.1f}" r="2" fill="#34495e"'
        ' fill-opacity="0.4"/>'
        for at, length in pauses
    ]
    return "\n".join([*parts, "</svg>", ""])


def _colour(kind: str) -> str:
    words = ((word, colour) for _, colour, words in _COLOURS for word in words)
    return next(colour for word, colour in words if word in kind)
