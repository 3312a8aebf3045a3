"""How long a bad version of cluster.yaml stays, and whom it hurts.

    python -m benchmarks.rollback [--trials 3] [--users 12]

Three workers with a tiny random model, half of the users with high priority, half with medium; each
asks again and again. A version is rolled out under which every request fails (a context of 32
tokens), with 2 s of baseline and 4 s of bake. The limit: the bake and 10 s, from when the first
worker runs it until all run again what was before. Writes results/rollback.json.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.local_cluster import local_cluster
from benchmarks.measures import print_table, save, spread
from shared.client import Cluster, connect
from shared.errors import ClusterError, Unavailable
from shared.messages.base import Priority
from shared.messages.rollout import ApplyRollout, Rollout, ShowRollout
from shared.settings.controller import RolloutSettings as RolloutSettings
from tests.models import make_tiny_model

_WATCHED = RolloutSettings(baseline_s=2, bake_s=4)
_LIMIT_S = _WATCHED.bake_s + 10
_TOKENS = 60
_POLL_S = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--users", type=int, default=12)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny")
        trials = [_trial(model, Path(folder) / str(n), arguments.users)
                  for n in range(arguments.trials)]  # fmt: skip
    print_table(
        f"a version that fails every request, {arguments.users} users; s",
        ("", "median", "min", "max"),
        [
            (
                name,
                *(f"{value:.1f}" for value in spread([trial[name] for trial in trials]).values()),
            )
            for name in ("found out", "gone back", "in all")
        ],
    )
    for name in ("high done", "high failed", "medium done", "medium failed"):
        print(f"{name}: {sum(trial[name] for trial in trials):.0f}")
    worst = max(trial["in all"] for trial in trials)
    print(f"longest {worst:.1f} s, of {_LIMIT_S:g} s that are allowed")
    save("rollback", {"trials": trials, "limit_s": _LIMIT_S})


def _trial(model: Path, home: Path, users: int) -> dict[str, float]:
    home.mkdir()
    settings = {
        "HOME": str(home),
        "XDG_DATA_HOME": str(home / "data"),
        "CLUSTER_CONFIG": str(_written(home / "cluster.yaml", model, context=200)),
    }
    with local_cluster(workers=3, settings=settings) as local:
        return asyncio.run(_roll_out(local.url, _text(model, context=32), users))


def _text(model: Path, *, context: int) -> str:
    return json.dumps({
        "skills": {"chat": ["tiny"]},
        "models": {"tiny": {"path": str(model), "max_context_tokens": context}},
        "controller": {"lease": {"ttl_s": 2}},
    })  # fmt: skip


def _written(file: Path, model: Path, *, context: int) -> Path:
    file.write_text(_text(model, context=context))
    return file


async def _roll_out(url: str, text: str, users: int) -> dict[str, float]:
    ended: Counter[str] = Counter()
    async with connect(url) as cluster:
        await _all_warm(cluster)
        priorities: list[Priority] = ["high", "medium"]
        asking = [asyncio.create_task(_ask_on(cluster, number, priorities[number % 2], ended))
                  for number in range(users)]  # fmt: skip
        await asyncio.sleep(2)
        await _apply(cluster, text)
        baking = await _until(cluster, "baking")
        back = await _until(cluster, "rolling_back")
        done = await _until(cluster, "rolled_back")
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
    return {
        "found out": back - baking,
        "gone back": done - back,
        "in all": done - baking,
        **{f"{who} {how}": float(ended[f"{who} {how}"])
           for who in ("high", "medium") for how in ("done", "failed")},
    }  # fmt: skip


async def _ask_on(cluster: Cluster, number: int, priority: Priority, ended: Counter[str]) -> None:
    while True:
        try:
            await cluster.generate(
                prompt=f"{number}. salt and stone",
                max_tokens=_TOKENS,
                temperature=0,
                priority=priority,
            )
            ended[f"{priority} done"] += 1
        except ClusterError:
            ended[f"{priority} failed"] += 1


async def _all_warm(cluster: Cluster) -> None:
    while True:
        health = await cluster.health()
        states = [model.state for worker in health.workers for model in worker.models]
        if len(health.workers) == 3 and set(states) == {"warm"}:
            return
        await asyncio.sleep(0.1)


async def _apply(cluster: Cluster, text: str) -> None:
    while True:
        try:
            await cluster.rollout(ApplyRollout(text=text, settings=_WATCHED))
            return
        except Unavailable:  # nobody leads yet
            await asyncio.sleep(0.1)


async def _until(cluster: Cluster, phase: str) -> float:
    """When that began, by the leader's clock, which is this machine's."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        rollout = await _now(cluster)
        if rollout is not None and rollout.phase == phase:
            return rollout.since
        await asyncio.sleep(_POLL_S)
    raise SystemExit(f"never {phase}: {rollout}")


async def _now(cluster: Cluster) -> Rollout | None:
    try:
        state = (await cluster.rollout(ShowRollout())).state
    except Unavailable:
        return None
    return state.rollout if state is not None else None


if __name__ == "__main__":
    main()
