"""What one controller routes: requests a second of its CPU, and what it adds on the way.

    python -m benchmarks.routing [--workers 10,100,1000] [--seconds 10] [--rate 300] [--repeats 3]

A real NATS server and the real `controller` command; *simulated* workers, each with 10 of 100
models, that only send heartbeats and ends (`benchmarks.simulated_fleet`); clients in processes of
their own (`benchmarks.routing_load`). What counts is the CPU of the controller, as all of it shares
this machine. `--in-flight 100` keeps so many requests open in place of a rate. Beside the way to a
worker: a hop of the same bytes through NATS, in the same run. Then the decision alone, in this
process. Writes results/routing.json.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
import yaml

from benchmarks.ending import end_on_sigterm
from benchmarks.measures import cpu_seconds, print_table, save, spread
from benchmarks.routing_decisions import decision_us
from benchmarks.simulated_fleet import skills
from benchmarks.stage import SCRIPTS, child, ended, nats_server
from shared import subjects
from shared.bus import Bus
from shared.errors import BusError, DecodeError
from shared.ids import ControllerId
from shared.messages.codec import decode
from shared.messages.health import ControllerHealth
from shared.settings.tree import Nats

_CONTROLLER = ControllerId("controller-1")
_HEARD_WITHIN_S = 60
_SETTLE_S = 3
_WARM_UP_S = 3


@dataclass(frozen=True, slots=True)
class _Stage:
    """`pids` by name; `clients` take orders on their stdin."""

    pids: dict[str, int]
    clients: "list[subprocess.Popen[str]]"


@contextlib.contextmanager
def _stage(workers: int, clients: int, log_level: str) -> Iterator[_Stage]:
    """Start all of it, and wait until the controller has heard every worker."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlx-routing-")))
        nats_url, _, nats_pid = stack.enter_context(nats_server(folder))
        config = folder / "cluster.yaml"
        config.write_text(yaml.safe_dump({"skills": dict(skills())}))
        controller = [str(SCRIPTS / "controller"), "--nats", nats_url, "--config", str(config)]
        controller += ["--id", _CONTROLLER]
        fleet = [sys.executable, "-m", "benchmarks.simulated_fleet", "--nats", nats_url]
        fleet += ["--workers", str(workers)]
        quiet = {"CLUSTER__LOGGING__LEVEL": log_level}
        pids = {
            "nats": nats_pid,
            "controller": stack.enter_context(child(controller, folder / "c.log", quiet)).pid,
            "workers": stack.enter_context(child(fleet, folder / "w.log")).pid,
        }
        started = []
        for number in range(clients):
            load = [sys.executable, "-m", "benchmarks.routing_load", "--nats", nats_url]
            process = subprocess.Popen(
                [*load, "--client", f"client-{number}"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            stack.enter_context(ended(process))
            started.append(process)
            pids[f"client-{number}"] = process.pid
        uvloop.run(_wait_until_heard(nats_url, workers))
        time.sleep(_SETTLE_S)
        yield _Stage(pids, started)


async def _wait_until_heard(nats_url: str, workers: int) -> None:
    bus = await Bus.connect(Nats(servers=[nats_url]), name="bench", wait_s=10)
    deadline = time.monotonic() + _HEARD_WITHIN_S
    subject, heard = subjects.controller_health(_CONTROLLER), -1
    while heard != workers:
        if time.monotonic() > deadline:
            raise SystemExit(f"the controller heard {heard} of {workers} workers")
        with contextlib.suppress(BusError, DecodeError):
            answer = await bus.request(subject, b"", timeout_s=1)
            heard = decode(ControllerHealth, answer.payload).controller.workers
    await bus.close()


def _load(stage: _Stage, seconds: float, rate: float, in_flight: int) -> dict[str, Any]:
    """What the clients tell of it, together, and the CPU seconds of each process meanwhile."""
    share = len(stage.clients)
    order = {"seconds": seconds, "rate": rate / share, "in_flight": in_flight // share}
    before, begun = cpu_seconds(stage.pids), time.perf_counter()
    for client in stage.clients:
        assert client.stdin is not None
        client.stdin.write(json.dumps(order) + "\n")
        client.stdin.flush()
    told = [json.loads(client.stdout.readline()) for client in stage.clients if client.stdout]
    taken, after = time.perf_counter() - begun, cpu_seconds(stage.pids)
    sums = {name: _joined([one[name] for one in told]) for name in told[0] if name != "error"}
    errors = [one["error"] for one in told if "error" in one]
    cpu_s = {name: after[name] - before[name] for name in stage.pids}
    return {**sums, "errors": errors, "seconds": taken, "cpu_s": cpu_s}


def _joined(parts: Sequence[Any]) -> Any:
    return sum(parts, [] if isinstance(parts[0], list) else 0)


def _measure(stage: _Stage, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run: some seconds with heartbeats only, then the load."""
    before = cpu_seconds(stage.pids)["controller"]
    time.sleep(arguments.idle_seconds)
    idle = (cpu_seconds(stage.pids)["controller"] - before) / arguments.idle_seconds
    load = _load(stage, arguments.seconds, arguments.rate, arguments.in_flight)
    if load["failed"] or load["lost"] or not load["finished"]:
        print(f"{load['failed']} failed, {load['lost']} lost: {load['errors']}", file=sys.stderr)
    finished, cpu_s = max(1, load["finished"]), load["cpu_s"]["controller"]
    return {
        "requests": finished,
        "accepted": load["accepted"],
        "failed": load["failed"],
        "lost": load["lost"],
        "requests_per_s": finished / load["seconds"],
        "requests_per_core_s": finished / cpu_s,
        "cpu_us": cpu_s / finished * 1e6,
        "beyond_idle_us": (cpu_s - idle * load["seconds"]) / finished * 1e6,
        "idle_share": idle,
        "cpu_shares": {name: used / load["seconds"] for name, used in load["cpu_s"].items()},
        "dispatch_ms": _percentiles_ms(load["dispatch_s"]),
        "hop_ms": _percentiles_ms(load["hop_s"]),
        "total_ms": _percentiles_ms(load["total_s"]),
    }


def _percentiles_ms(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds) or [0.0]
    shares = {"p50": 0.5, "p99": 0.99}
    return {name: ordered[int(len(ordered) * at)] * 1000 for name, at in shares.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="10,100,1000", help="simulated; several with commas")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--idle-seconds", type=float, default=5)
    parser.add_argument("--rate", type=float, default=300, help="requests a second, of all clients")
    parser.add_argument("--in-flight", type=int, default=0, help="in place of a rate")
    parser.add_argument("--clients", type=int, default=2, help="processes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--log-level", default="info", help="of the controller")
    arguments = parser.parse_args()
    arguments.rate = 0 if arguments.in_flight else arguments.rate
    end_on_sigterm()
    runs: dict[int, list[dict[str, Any]]] = {}
    decisions: dict[int, list[dict[str, float]]] = {}
    for workers in map(int, arguments.workers.split(",")):
        with _stage(workers, arguments.clients, arguments.log_level) as stage:
            _load(stage, _WARM_UP_S, arguments.rate, arguments.in_flight)
            runs[workers] = []
            for repeat in range(arguments.repeats):
                print(f"{workers} workers, {repeat + 1}/{arguments.repeats}", file=sys.stderr)
                runs[workers].append(_measure(stage, arguments))
        decisions[workers] = [decision_us(workers) for _ in range(arguments.repeats)]
    _report(runs, decisions, arguments)


def _report(
    runs: Mapping[int, list[dict[str, Any]]],
    decisions: Mapping[int, list[dict[str, float]]],
    arguments: argparse.Namespace,
) -> None:
    def shown(values: list[float], digits: int = 0) -> str:
        found = spread(values)
        middle, least, most = (found[name] for name in ("median", "min", "max"))
        return f"{middle:.{digits}f} ({least:.{digits}f}-{most:.{digits}f})"

    def of(workers: int, name: str, digits: int = 0, factor: float = 1) -> str:
        return shown([run[name] * factor for run in runs[workers]], digits)

    def times(workers: int, name: str) -> str:
        return " / ".join(
            shown([run[name][percentile] for run in runs[workers]], 1)
            for percentile in ("p50", "p99")
        )

    print_table(
        f"one controller, simulated workers, medians of {arguments.repeats} (minimum-maximum)",
        ("workers", "requests/s", "a second of its CPU", "CPU µs", "beyond idle µs", "idle CPU %"),
        [
            (
                str(workers),
                of(workers, "requests_per_s"),
                of(workers, "requests_per_core_s"),
                of(workers, "cpu_us"),
                of(workers, "beyond_idle_us"),
                of(workers, "idle_share", 1, 100),
            )
            for workers in runs
        ],
    )
    print_table(
        "milliseconds, p50 / p99",
        ("workers", "publish to dispatch", "a bare hop", "publish to end"),
        [
            (
                str(workers),
                *(times(workers, name) for name in ("dispatch_ms", "hop_ms", "total_ms")),
            )
            for workers in runs
        ],
    )
    print_table(
        "the decision alone, in process",
        ("workers", "decisions/s", "choose µs", "need and links µs"),
        [
            (
                str(workers),
                shown([1e6 / one["choose_us"] for one in told]),
                shown([one["choose_us"] for one in told], 1),
                shown([one["need_us"] for one in told], 1),
            )
            for workers, told in decisions.items()
        ],
    )
    result = {"options": vars(arguments), "runs": runs, "decisions": decisions}
    print(f"written to {save('routing', result)}")


if __name__ == "__main__":
    main()
