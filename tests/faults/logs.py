"""What the processes of a fleet logged of requests. The judge does not look here: this is for
figures, and for people who look into a promise that was broken."""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from tests.faults.evidence import Injection
from tests.faults.judge import Violation

_REQUEST_ID = re.compile(r"(used|hand)-[0-9a-f]+")
_OF_MEMBERS = re.compile(r" leads| no longer leads| is gone: ")
_TAKEN = "dispatched to"
_LEAVES = ("migrates", "tried again")
_COUNTED = {
    "migrations": "migrates",
    "adoptions": "adopted from",
    "differing requests": "the answer differs",
}


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """What one process said of one request.

    Attributes:
        at: seconds since 1970, by that process's own clock.
    """

    at: float
    request_id: str
    said: str
    worker: str | None
    whole: str


def read(folder: Path) -> list[Line]:
    """The lines about requests in all logs of a folder, in the order of time."""
    return [line for line in _read_all(folder) if line.request_id]


def _read_all(folder: Path) -> list[Line]:
    found = []
    for log in folder.glob("*.log"):
        for line in log.read_text(errors="replace").splitlines():
            try:
                entry = json.loads(line)
                fields, said = entry.get("fields") or {}, entry["message"]
                at = datetime.fromisoformat(entry["time"]).timestamp()
                of = fields.get("request_id", ""), said, fields.get("worker")
                found.append(Line(at, *of, line))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # not ours
    return sorted(found, key=lambda line: line.at)


def explained(violations: Sequence[Violation], folder: Path) -> str:
    """Each violation, with what all processes logged of the requests that it names, and who led and
    was gone meanwhile."""
    lines, told = _read_all(folder), []
    for violation in violations:
        named = {each[0] for each in _REQUEST_ID.finditer(str(violation))}
        times = [line.at for line in lines if line.request_id in named]
        told.append(str(violation))
        told += [
            line.whole
            for line in lines
            if line.request_id in named
            or (times and times[0] <= line.at <= times[-1] and _OF_MEMBERS.search(line.said))
        ]
    return "\n".join(told)


def counts(folder: Path) -> dict[str, int]:
    """How often requests were moved to another worker, taken over by another controller, and
    answered otherwise than they began; by processes that have ended, too."""
    lines = read(folder)
    return {
        name: sum(line.said.startswith(words) for line in lines) for name, words in _COUNTED.items()
    }


def taken_over(
    folder: Path, injections: Sequence[Injection], epoch: float, within_s: float
) -> dict[str, list[float]]:
    """By kind of fault: from its injection at a worker until another worker, or another life of
    that one, had taken a request that was there, by the controllers' word.

    Args:
        epoch: when the clock of the injections was 0, in seconds since 1970.
        within_s: what left a worker later than that left it for another reason.
    """
    of_request: dict[str, list[Line]] = defaultdict(list)
    for line in read(folder):
        of_request[line.request_id].append(line)
    found: dict[str, list[float]] = defaultdict(list)
    for lines in of_request.values():
        places = [place for place, line in enumerate(lines) if line.said.startswith(_TAKEN)]
        for before, after in pairwise(places):
            came, next_came = lines[before].at - epoch, lines[after].at - epoch
            left = next((at for at in lines[before:after] if at.said.startswith(_LEAVES)), None)
            hit = [
                each
                for each in injections
                if left and left.worker in each.targets
                if came <= each.at <= left.at - epoch <= each.at + within_s
            ]
            if hit:
                found[hit[-1].kind].append(next_came - hit[-1].at)
    return dict(found)
