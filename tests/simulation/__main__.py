"""`make simulate SCRIPTS=100000 SEED=7`: random scripts against a simulated cluster."""

import argparse
import collections
import logging
import sys
import time
from collections.abc import Sequence
from unittest import mock

from tests.simulation.cluster import SimulatedCluster
from tests.simulation.loop import SimulatedLoop
from tests.simulation.script import Step, random_script
from worker.memory_guard import MemoryGuard
from worker.memory_limits import MemoryReading

_MEMORY = MemoryReading(own_bytes=0, available_bytes=2**40, total_bytes=2**40, device_bytes=2**40)


def broken(steps: Sequence[Step]) -> list[str]:
    """Which promises a cluster breaks when this happens to it."""
    loop = SimulatedLoop()
    try:
        with mock.patch.object(MemoryGuard, "_read", lambda _: _MEMORY):
            wrong = loop.run(_life(steps))
    except Exception as error:
        wrong = [f"{type(error).__name__}: {error}"]
    return wrong + [f"nobody caught {problem}" for problem in loop.problems]


async def _life(steps: Sequence[Step]) -> list[str]:
    cluster = SimulatedCluster()
    await cluster.start()
    for step in steps:
        await cluster.do(step)
    await cluster.settle()
    return await cluster.check()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scripts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=5)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began_at, failed = time.perf_counter(), 0
    kinds: collections.Counter[str] = collections.Counter()
    for number in range(arguments.scripts):
        seed = f"{arguments.seed}/{number}"
        if wrong := broken(random_script(seed)):
            failed += 1
            kinds.update({line.partition(":")[0][:60] for line in wrong})
            if failed <= arguments.show:
                print(f"{seed}: {wrong[0][:600]}", flush=True)
    rate = arguments.scripts / (time.perf_counter() - began_at)
    print(f"{failed} of {arguments.scripts} broke a promise, {rate:.1f} scripts/s")
    for kind, count in kinds.most_common():
        print(f"{count:6} {kind}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
