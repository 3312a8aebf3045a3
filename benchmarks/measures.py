"""Numbers out of runs: percentiles, medians, CPU shares, tables."""

import itertools
import json
import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

RESULTS_VARIABLE = "BENCHMARK_RESULTS"
"""The folder for results, if not `benchmarks/results`."""


@dataclass(slots=True)
class Run:
    """One run of some streams.

    Attributes:
        seconds: from the first request to the last token.
        first_token_s: for each stream, from its request to its first token.
        gaps_s: all times between tokens of one stream.
        cpu_s: processor time used meanwhile, by process.
        stream_s: when each token of each stream came, on one clock.
    """

    tokens: int = 0
    seconds: float = 0.0
    first_token_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)
    stream_s: list[list[float]] = field(default_factory=list)

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def full_steps_s(self) -> list[float]:
        """Times between tokens of one stream while all streams ran: from the last first token
        to the first last one."""
        begin = max(times[0] for times in self.stream_s)
        end = min(times[-1] for times in self.stream_s)
        return [
            later - earlier
            for times in self.stream_s
            for earlier, later in itertools.pairwise(times)
            if begin <= earlier and later <= end
        ]

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    def summary(self) -> dict[str, Any]:
        cores = self.seconds or 1.0
        return {
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "tokens_per_s": round(self.tokens_per_s, 2),
            "ttft_ms": percentiles_ms(self.first_token_s),
            "gap_ms": percentiles_ms(self.gaps_s),
            "cpu_share": {name: round(s / cores, 3) for name, s in self.cpu_s.items()},
        }


class StreamClock:
    """Notes when the tokens of one stream come."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._started = time.perf_counter()
        self._last: float | None = None
        self._times: list[float] = []
        run.stream_s.append(self._times)

    def tick(self, tokens: int = 1) -> None:
        if tokens == 0:
            return
        now = time.perf_counter()
        self._run.tokens += tokens
        if self._last is None:
            self._run.first_token_s.append(now - self._started)
        else:
            self._run.gaps_s.append(now - self._last)
        self._last = now
        self._times += [now] * tokens


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """p50 and p95 in milliseconds; zeros for nothing."""
    if not seconds:
        return {"p50": 0.0, "p95": 0.0}
    ordered = sorted(seconds)
    return {
        "p50": round(ordered[len(ordered) // 2] * 1000, 1),
        "p95": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))] * 1000, 1),
    }


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median, minimum and maximum."""
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered), 3),
        "min": round(ordered[0], 3),
        "max": round(ordered[-1], 3),
    }


def ratios(values: Iterable[float], others: Iterable[float]) -> dict[str, float]:
    """Median, minimum and maximum of each run's value over the other's."""
    return spread(value / other for value, other in zip(values, others, strict=True))


def shown(figure: Mapping[str, float], digits: int = 2) -> str:
    """What `spread` gives, for people."""
    median, low, high = (f"{figure[key]:.{digits}f}" for key in ("median", "min", "max"))
    return f"{median} ({low}-{high})"


def cpu_seconds(processes: Mapping[str, int]) -> dict[str, float]:
    """The processor time that each named process has used so far."""
    used = {}
    for name, pid in processes.items():
        times = psutil.Process(pid).cpu_times()
        used[name] = times.user + times.system
    return used


def save(name: str, result: Mapping[str, Any]) -> Path:
    folder = Path(os.environ.get(RESULTS_VARIABLE) or Path(__file__).parent / "results")
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left", box=None, header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=140).print(table)
