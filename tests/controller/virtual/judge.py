"""Scripts in which controllers, workers and clients are killed and stopped, too:

python -m tests.controller.virtual.judge 2000 --seed 1

Clients publish again what they hear nothing of. Prints how many scripts broke a promise, and how.
"""

import argparse
import collections
import logging
import random
import time
from collections.abc import Callable, Sequence

from tests.controller.virtual.clock import run_in_virtual_time
from tests.controller.virtual.cluster import follow_steps
from tests.controller.virtual.steps import (
    CONTROLLERS,
    MOODS,
    REQUESTS,
    WORKERS,
    Ask,
    CancelIt,
    CrashEngine,
    Crowd,
    Cut,
    Drain,
    Generate,
    Kill,
    KillClient,
    KillController,
    Leave,
    Pace,
    Restart,
    Say,
    SlowFrom,
    SlowTo,
    StartController,
    Step,
    Stop,
    Wait,
)

_WAITS_S = (0.0005, 0.002, 0.06, 0.3, 0.95, 1.1, 2.5)
_LATENCIES_S = (0.001, 0.02, 0.4, 1.2, 1.8)
_STOPS_S = (0.3, 1.5, 4.0)
_SHORTEST, _LONGEST = 4, 32


def random_script(seed: object) -> list[Step]:
    """The same steps for the same seed."""
    draw = random.Random(str(seed))

    def one(*values: object) -> Callable[[], object]:
        return lambda: draw.choice(values)

    worker, controller, party = one(*WORKERS), one(*CONTROLLERS), one(*WORKERS, *CONTROLLERS)
    some, latency, stop_s = one("", *WORKERS), one(*_LATENCIES_S), one(*_STOPS_S)
    request = one(*range(4), *range(REQUESTS))
    kinds: list[tuple[Callable[..., Step], tuple[Callable[[], object], ...]]] = [
        *[(Wait, (one(*_WAITS_S),))] * 5,
        *[(Ask, (request, controller, one(False, True)))] * 6,
        (CancelIt, (request,)),
        (SlowFrom, (party, latency)),
        (SlowFrom, (worker, latency, controller)),
        (SlowTo, (party, latency)),
        (Crowd, (controller, one(0.0005, 0.05))),
        (Say, (one(*MOODS), some)),
        (Pace, (one("idle", "at once"), some)),
        (Generate, (worker, one("token", "end", "refusal"))),
        (CrashEngine, (worker,)),
        (Kill, (worker,)),
        (Restart, (worker, one(0.0, 2.0, 5.0))),
        (Drain, (worker,)),
        (Cut, (worker, one(0.1, 1.2, 4.0))),
        (Leave, (controller,)),
        (KillController, (controller,)),
        (StartController, (controller,)),
        (Stop, (controller, stop_s)),
        (Stop, (worker, stop_s)),
        (KillClient, (request,)),
    ]
    steps = []
    for _ in range(draw.randint(_SHORTEST, _LONGEST)):
        kind, arguments = draw.choice(kinds)
        steps.append(kind(*(argument() for argument in arguments)))
    return steps


def broken(steps: Sequence[Step]) -> str | None:
    """Which promises these steps break, if any."""
    try:
        run_in_virtual_time(follow_steps(steps, asks_again=True))
    except AssertionError as error:
        return str(error)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scripts", type=int)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began_at = time.perf_counter()
    kinds: collections.Counter[str] = collections.Counter()
    count = 0
    for number in range(arguments.scripts):
        seed = f"{arguments.seed}/{number}"
        if (wrong := broken(random_script(seed))) is not None:
            count += 1
            kinds.update({line.partition(":")[0] for line in wrong.splitlines()})
            print(f"{seed}: {wrong.splitlines()[0][:300]}")
    rate = arguments.scripts / (time.perf_counter() - began_at)
    print(f"{count} of {arguments.scripts} broke a promise, {rate:.1f} scripts/s: {dict(kinds)}")


if __name__ == "__main__":
    main()
