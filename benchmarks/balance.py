"""How routing policies share work among three workers: equal ones, and with one three times slower.

    python -m benchmarks.balance [--fleets equal,slow] [--policies ...] [--repeats 3]

A real NATS server, the real `controller` command, real clients and the worker's own code; the
engines are *simulated* (`benchmarks.simulated_engines`), so that three workers do not share two
cores, and one can be slower than the others. First, for each fleet, how many tokens a second it
serves where always many requests are open. Then prompts of 50 to 1,000 tokens with answers of 16
to 256, log-uniformly, come at random (Poisson) at a share of that, the same ones for each policy;
there are no sessions, and no prompts that begin alike. Every run has a new cluster; the policies
take turns. What comes in the first seconds does not count. Writes results/balance.json.
"""

import argparse
import asyncio
import contextlib
import json
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import uvloop

from benchmarks.measures import cpu_seconds, percentiles_ms, print_table, save, spread
from benchmarks.open_load import Load, Outcome, Sizes
from benchmarks.simulated_engines import SKILLS
from benchmarks.stage import SCRIPTS, child, nats_server
from shared.cli.local.serving import wait_until_ready
from shared.client import Cluster, connect

Fleet = Mapping[str, float]
"""Workers, and how many times slower each is than a fast one."""

_FLEETS: dict[str, Fleet] = {
    "equal": {"equal-1": 1, "equal-2": 1, "equal-3": 1},
    "slow": {"fast-1": 1, "fast-2": 1, "slow-1": 3},
}
_POLICIES = "prefix-aware,least-busy,power-of-two,round-robin"
_SIZES = Sizes()
_READY_WITHIN_S = 60
_SAMPLE_S = 0.5
_OPEN_PER_WORKER = 48
_DEVIATION = "mlx_controller_load_deviation"


@dataclass(frozen=True, slots=True)
class _Running:
    """A cluster that serves; `pids` by name."""

    cluster: Cluster
    metrics_url: str
    pids: dict[str, int]


@contextlib.asynccontextmanager
async def _running(fleet: Fleet, policy: str) -> AsyncIterator[_Running]:
    with _processes(fleet, policy) as (nats_url, log, pids):
        async with connect(nats_url, wait_s=10) as cluster:
            async with asyncio.timeout(_READY_WITHIN_S):
                await wait_until_ready(cluster, fleet, lambda _: None)
            found = re.search(r"http://[^\s\"]+/metrics", log.read_text())
            assert found is not None
            yield _Running(cluster, found[0], pids)


@contextlib.contextmanager
def _processes(fleet: Fleet, policy: str) -> Iterator[tuple[str, Path, dict[str, int]]]:
    """The URL of NATS, the controller's log, pids."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlx-balance-")))
        nats_url, _, nats_pid = stack.enter_context(nats_server(folder))
        controller = [str(SCRIPTS / "controller"), "--nats", nats_url, "--metrics-port", "0"]
        workers = [sys.executable, "-m", "benchmarks.simulated_engines", "--nats", nats_url]
        workers += [f"--worker={name}={slowness}" for name, slowness in fleet.items()]
        settings = {
            "CLUSTER__SKILLS": json.dumps(SKILLS),
            "CLUSTER__CONTROLLER__ROUTING__POLICY": policy,
        }
        log = folder / "c.log"
        pids = {
            "nats": nats_pid,
            "controller": stack.enter_context(child(controller, log, settings)).pid,
            "workers": stack.enter_context(child(workers, folder / "w.log")).pid,
        }
        yield nats_url, log, pids


async def _capacity(fleet: Fleet, full_after_s: float, seconds: float) -> float:
    """Tokens a second that a fleet generates where more requests are open than it takes."""
    async with _running(fleet, "least-busy") as running:
        load = Load(running.cluster, _SIZES, seed=-1)
        whole_s = full_after_s + seconds
        await load.at_once(_OPEN_PER_WORKER * len(fleet), whole_s)
    times = [at_s for outcome in load.outcomes for at_s in outcome.token_s]
    return sum(full_after_s <= at_s < whole_s for at_s in times) / seconds


async def _run(
    fleet: Fleet, policy: str, per_s: float, seed: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    async with _running(fleet, policy) as running:
        load = Load(running.cluster, _SIZES, seed)
        before, began_at = cpu_seconds(running.pids), time.perf_counter()
        whole_s = arguments.warm_up + arguments.seconds
        async with asyncio.TaskGroup() as tasks:
            sampling = tasks.create_task(_sample(running.metrics_url, arguments.warm_up, whole_s))
            await load.at_rate(per_s, whole_s)
        taken_s, after = time.perf_counter() - began_at, cpu_seconds(running.pids)
    figures = _figures(load.outcomes, fleet, arguments.warm_up, whole_s)
    shares = {name: round((after[name] - before[name]) / taken_s, 3) for name in before}
    outcomes = [_brief(outcome) for outcome in load.outcomes]
    deviation = sampling.result()
    return {**figures, "load_deviation": deviation, "cpu_shares": shares, "requests": outcomes}


async def _sample(url: str, begin_s: float, end_s: float) -> list[float]:
    """The controller's figure, twice a second between these."""
    began_at, samples = time.perf_counter(), []
    await asyncio.sleep(begin_s)
    while time.perf_counter() - began_at < end_s:
        samples.append(await asyncio.to_thread(_deviation, url))
        await asyncio.sleep(_SAMPLE_S)
    return samples


def _deviation(url: str) -> float:
    with urlopen(f"{url}?name[]={_DEVIATION}", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(_DEVIATION)))


def _figures(
    outcomes: Sequence[Outcome], fleet: Fleet, begin_s: float, end_s: float
) -> dict[str, Any]:
    """Of the requests that came between these, and of the tokens that did."""
    sent = [outcome for outcome in outcomes if outcome.at_s >= begin_s]
    answered = [outcome for outcome in sent if outcome.code is None]
    requests = Counter(outcome.worker for outcome in answered)
    tokens: Counter[str | None] = Counter()
    for outcome in outcomes:
        tokens[outcome.worker] += sum(begin_s <= at_s < end_s for at_s in outcome.token_s)
    seconds = end_s - begin_s
    return {
        "sent": len(sent),
        "errors": Counter(outcome.code for outcome in sent if outcome.code is not None),
        "offered_tokens_per_s": sum(outcome.answer_tokens for outcome in sent) / seconds,
        "tokens_per_s": sum(tokens.values()) / seconds,
        "first_token_ms": percentiles_ms([outcome.first_token_s for outcome in answered]),
        "request_ms": percentiles_ms([outcome.seconds for outcome in answered]),
        "last_end_s": max((outcome.token_s[-1] for outcome in answered), default=0.0) - end_s,
        "token_share": {name: tokens[name] / max(1, sum(tokens.values())) for name in fleet},
        "request_share": {name: requests[name] / max(1, len(answered)) for name in fleet},
        "token_deviation": _most_apart([tokens[name] for name in fleet]),
        "request_deviation": _most_apart([requests[name] for name in fleet]),
        "forecast_error_ms": percentiles_ms(
            [abs(each.first_token_s - each.forecast_ms["total"] / 1000) for each in answered]
        ),
    }


def _most_apart(values: Sequence[float]) -> float:
    """The largest distance from the mean, as a share of it."""
    mean = statistics.fmean(values)
    return max(abs(value - mean) for value in values) / mean if mean else 0.0


def _brief(outcome: Outcome) -> dict[str, Any]:
    """Without the time of each token."""
    times = outcome.token_s
    told = {name: value for name, value in asdict(outcome).items() if name != "token_s"}
    return {**told, "first_s": times[0] if times else None, "last_s": times[-1] if times else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fleets", default=",".join(_FLEETS))
    parser.add_argument("--policies", default=_POLICIES)
    parser.add_argument("--load", type=float, default=0.75, help="as a share of the capacity")
    parser.add_argument("--capacity", type=float, help="tokens a second; by default measured")
    parser.add_argument(
        "--full-after", type=float, default=15, help="seconds before the capacity is measured"
    )
    parser.add_argument("--seconds", type=float, default=60, help="of each run")
    parser.add_argument("--warm-up", type=float, default=10, help="seconds before that")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    policies, result = arguments.policies.split(","), {}
    for name in arguments.fleets.split(","):
        fleet = _FLEETS[name]
        capacity = arguments.capacity
        if capacity is None:
            print(f"{name}: capacity", file=sys.stderr)
            capacity = uvloop.run(_capacity(fleet, arguments.full_after, arguments.seconds / 2))
        per_s = arguments.load * capacity / _SIZES.mean_answer
        runs: dict[str, list[dict[str, Any]]] = {policy: [] for policy in policies}
        for repeat in range(arguments.repeats):
            for policy in policies:
                print(f"{name}: run {repeat + 1}/{arguments.repeats}, {policy}", file=sys.stderr)
                runs[policy].append(uvloop.run(_run(fleet, policy, per_s, repeat, arguments)))
        _report(name, fleet, capacity, per_s, runs)
        result[name] = {"capacity_tokens_per_s": capacity, "requests_per_s": per_s, "runs": runs}
    print(f"written to {save('balance', {'options': vars(arguments), **result})}")


def _report(
    name: str,
    fleet: Fleet,
    capacity: float,
    per_s: float,
    runs: Mapping[str, list[dict[str, Any]]],
) -> None:
    some = next(iter(runs.values()))
    offered = statistics.median(run["offered_tokens_per_s"] for run in some)
    print_table(
        f"{name}: {per_s:.1f} requests/s, {offered:.0f} tokens/s of {capacity:.0f}; "
        f"medians of {len(some)} (minimum-maximum)",
        (
            "",
            "tokens/s",
            "TTFT p50 ms",
            "TTFT p95 ms",
            "request p50 ms",
            "request p95 ms",
            "errors",
        ),
        [
            (
                policy,
                _shown([run["tokens_per_s"] for run in mine]),
                *(
                    _shown([run[what][part] for run in mine])
                    for what in ("first_token_ms", "request_ms")
                    for part in ("p50", "p95")
                ),
                str(sum(sum(run["errors"].values()) for run in mine)),
            )
            for policy, mine in runs.items()
        ],
    )
    print_table(
        f"{name}: shares of the workers, and how far the farthest is from the mean",
        ("", *(f"{worker} tokens %" for worker in fleet), "tokens %", "requests %",
         "load deviation, mean %"),
        [
            (
                policy,
                *(_percent([run["token_share"][worker] for run in mine]) for worker in fleet),
                _percent([run["token_deviation"] for run in mine]),
                _percent([run["request_deviation"] for run in mine]),
                _percent([statistics.fmean(run["load_deviation"]) for run in mine]),
            )
            for policy, mine in runs.items()
        ],
    )  # fmt: skip


def _percent(shares: Sequence[float]) -> str:
    return _shown([100 * share for share in shares], 1)


def _shown(values: Sequence[float], digits: int = 0) -> str:
    found = spread(values)
    least, most = found["min"], found["max"]
    return f"{found['median']:.{digits}f} ({least:.{digits}f}-{most:.{digits}f})"


if __name__ == "__main__":
    main()
