"""What one controller routes: requests a second of its CPU, and what it adds on the way.

    python -m benchmarks.routing [--workers 10,100,1000] [--rate 200] [--in-flight 512]

A real NATS server and the real `controller` command; *simulated* workers, each with 10 of 100
models, that only send heartbeats and ends (`benchmarks.simulated_fleet`); clients in processes of
their own (`benchmarks.routing_load`), first with so many requests a second, then with so many open.
What counts is the CPU of the controller, as all of it shares this machine; with many open it wakes
up seldom, as it does when it is busy. Beside it: a controller that only passes messages on
(`benchmarks.bare_controller`); beside the way to a worker a hop of the same bytes through NATS.
Then the decision alone, in this process. Writes results/routing.json.
"""

import argparse
import contextlib
import json
import statistics
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

from benchmarks.children import started
from benchmarks.measures import cpu_seconds, print_table, save
from benchmarks.routing_decisions import decision_us
from benchmarks.simulated_fleet import skills
from benchmarks.stage import SCRIPTS, child, nats_server
from shared import subjects
from shared.bus import Bus
from shared.codec import decode
from shared.errors import BusError, DecodeError
from shared.ids import ControllerId
from shared.messages.health import ControllerHealth
from shared.settings.nats import NatsSettings

CONTROLLER = ControllerId("controller-1")
_HEARD_WITHIN_S = 60
_SIDES = ("controller", "bare")


Runs = dict[int, dict[str, list[dict[str, Any]]]]
"""What was measured, by number of workers and by side."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """`pids` by name; `clients` take orders on their stdin; `folder` has the logs."""

    pids: dict[str, int]
    clients: "list[subprocess.Popen[str]]"
    folder: Path

    def complaints(self) -> str:
        """The last lines of each log that are no routine."""
        logs = [path.read_text().splitlines() for path in sorted(self.folder.glob("*.log"))]
        routine = ("[INF]", '"info"')
        told = [[line for line in log if not any(mark in line for mark in routine)] for log in logs]
        return "\n".join(line for log in told for line in log[-3:])


@contextlib.contextmanager
def _stage(side: str, workers: int, clients: int, log_level: str) -> Iterator[_Stage]:
    """Start all of it, and wait until the controller has heard every worker."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlx-routing-")))
        nats_url, _, nats_pid = stack.enter_context(nats_server(folder))
        controller = [*_command(side, folder), "--nats", nats_url, "--id", CONTROLLER]
        fleet = [sys.executable, "-m", "benchmarks.simulated_fleet", "--nats", nats_url]
        fleet += ["--workers", str(workers)]
        quiet = {"CLUSTER__LOGGING__LEVEL": log_level}
        pids = {
            "nats": nats_pid,
            "controller": stack.enter_context(child(controller, folder / "c.log", quiet)).pid,
            "workers": stack.enter_context(child(fleet, folder / "w.log")).pid,
        }
        processes = []
        for number in range(clients):
            load = [sys.executable, "-m", "benchmarks.routing_load", "--nats", nats_url]
            load += ["--client", f"client-{number}"]
            client = started(load, stdout=subprocess.PIPE, text=True)
            processes.append(stack.enter_context(client))
            pids[f"client-{number}"] = processes[-1].pid
        uvloop.run(wait_until_heard(nats_url, workers))
        yield _Stage(pids, processes, folder)


def _command(side: str, folder: Path) -> list[str]:
    if side == "bare":
        return [sys.executable, "-m", "benchmarks.bare_controller"]
    config = folder / "cluster.yaml"
    config.write_text(yaml.safe_dump({"skills": dict(skills())}))
    return [str(SCRIPTS / "controller"), "--config", str(config)]


async def wait_until_heard(nats_url: str, workers: int) -> None:
    """Return when the controller knows so many workers."""
    bus = await Bus.connect(NatsSettings(servers=[nats_url]), name="bench", wait_s=10)
    deadline = time.monotonic() + _HEARD_WITHIN_S
    subject, heard = subjects.controller_health(CONTROLLER), -1
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
    """One run: some seconds with heartbeats only, then both loads."""
    before = cpu_seconds(stage.pids)["controller"]
    time.sleep(arguments.idle_seconds)
    idle = (cpu_seconds(stage.pids)["controller"] - before) / arguments.idle_seconds
    at_rate = _load(stage, arguments.seconds, arguments.rate, 0)
    many_open = _load(stage, arguments.seconds, 0, arguments.in_flight)
    return {
        "idle_share": idle,
        "at_rate": _figures(stage, at_rate, idle),
        "many_open": _figures(stage, many_open, idle),
    }


def _figures(stage: _Stage, load: dict[str, Any], idle: float) -> dict[str, Any]:
    """
    Args:
        idle: the share of a core that heartbeats alone take.
    """
    if load["failed"] or load["lost"] or not load["finished"]:
        print(f"{load['failed']} failed, {load['lost']} lost: {load['errors']}", file=sys.stderr)
        print(stage.complaints(), file=sys.stderr)
    finished, cpu_s = max(1, load["finished"]), load["cpu_s"]["controller"]
    return {
        **{name: load[name] for name in ("finished", "accepted", "failed", "lost")},
        "requests_per_s": finished / load["seconds"],
        "requests_per_core_s": finished / max(cpu_s, 1e-3),
        "cpu_us": cpu_s / finished * 1e6,
        "beyond_idle_us": (cpu_s - idle * load["seconds"]) / finished * 1e6,
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
    parser.add_argument("--seconds", type=float, default=10, help="of each load")
    parser.add_argument("--idle-seconds", type=float, default=5)
    parser.add_argument("--rate", type=float, default=200, help="requests a second, of all clients")
    parser.add_argument("--in-flight", type=int, default=512, help="requests, of all clients")
    parser.add_argument("--clients", type=int, default=2, help="processes")
    parser.add_argument("--warm-up", type=float, default=3, help="seconds idle, then at the rate")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--log-level", default="info", help="of the controller")
    arguments = parser.parse_args()
    counts = [int(workers) for workers in arguments.workers.split(",")]
    if min(counts) < 10:
        parser.error("--workers: at least 10, so that each model is somewhere")
    runs: Runs = {}
    for workers in counts:
        for side in _SIDES:
            print(f"{workers} workers, {side}", file=sys.stderr)
            with _stage(side, workers, arguments.clients, arguments.log_level) as stage:
                time.sleep(arguments.warm_up)
                _load(stage, arguments.warm_up, arguments.rate, 0)
                measured = [_measure(stage, arguments) for _ in range(arguments.repeats)]
                runs.setdefault(workers, {})[side] = measured
    decisions = {
        workers: [decision_us(workers) for _ in range(arguments.repeats)] for workers in counts
    }
    _report(runs, decisions)
    result = {"options": vars(arguments), "runs": runs, "decisions": decisions}
    print(f"written to {save('routing', result)}")


def _report(runs: Runs, decisions: Mapping[int, list[dict[str, float]]]) -> None:
    sides = [(workers, side) for workers in runs for side in _SIDES]

    def of(at: tuple[int, str], load: str, name: str) -> str:
        workers, side = at
        return _shown([run[load][name] for run in runs[workers][side]])

    def times(at: tuple[int, str], name: str) -> str:
        workers, side = at
        told = [run["at_rate"][name] for run in runs[workers][side]]
        return " / ".join(_shown([one[part] for one in told], 1) for part in ("p50", "p99"))

    def idle(at: tuple[int, str]) -> str:
        workers, side = at
        return _shown([100 * run["idle_share"] for run in runs[workers][side]], 1)

    for load, title in (("at_rate", "at a rate"), ("many_open", "many open at once")):
        print_table(
            f"{title}: one controller, simulated workers, medians (minimum-maximum)",
            (
                "workers",
                "",
                "requests/s",
                "per CPU second",
                "CPU µs",
                "beyond idle µs",
                "idle CPU %",
            ),
            [
                (
                    str(at[0]),
                    at[1],
                    of(at, load, "requests_per_s"),
                    of(at, load, "requests_per_core_s"),
                    of(at, load, "cpu_us"),
                    of(at, load, "beyond_idle_us"),
                    idle(at),
                )
                for at in sides
            ],
        )
    print_table(
        "at a rate: milliseconds, p50 / p99",
        ("workers", "", "publish to dispatch", "a bare hop"),
        [(str(at[0]), at[1], times(at, "dispatch_ms"), times(at, "hop_ms")) for at in sides],
    )
    print_table(
        "the decision alone, in process",
        ("workers", "decisions/s", "choose µs", "need and links µs"),
        [
            (
                str(workers),
                _shown([1e6 / one["choose_us"] for one in told]),
                _shown([one["choose_us"] for one in told], 1),
                _shown([one["need_us"] for one in told], 1),
            )
            for workers, told in decisions.items()
        ],
    )


def _shown(values: Sequence[float], digits: int = 0) -> str:
    ordered = sorted(values)
    middle, least, most = statistics.median(ordered), ordered[0], ordered[-1]
    return f"{middle:.{digits}f} ({least:.{digits}f}-{most:.{digits}f})"


if __name__ == "__main__":
    main()
