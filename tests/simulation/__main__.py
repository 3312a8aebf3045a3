"""Random scripts against a simulated cluster of the real code.

    make simulate [SCRIPTS=100000] [SEED=7]

Each script disturbs a cluster of two controllers, two workers and some clients, on three NATS
servers with JetStream, in simulated time; 70% of them kill, stop or cut off any of these. A script
that breaks a promise is made as short as it gets, and printed so that it can be kept
(tests/simulation/kept_scripts.py).
"""

import argparse
import os
import secrets
import sys
import time

from tests.simulation.judge import Broken, count_kinds, judge_all, shortest


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="make simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scripts", type=int, default=10_000, help="how many")
    parser.add_argument("--seed", help="of the scripts; by default a new one each time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--show", type=int, default=3, help="so many broken ones are made short")
    arguments = parser.parse_args()
    seed = arguments.seed or secrets.token_hex(4)
    print(f"{arguments.scripts} scripts, seed {seed}, {arguments.jobs} processes", flush=True)
    began_at, tried = time.perf_counter(), 0
    found: list[Broken] = []
    for count, some in judge_all(seed, arguments.scripts, arguments.jobs):
        tried, found = tried + count, found + some
        rate = tried / (time.perf_counter() - began_at)
        for script in some:
            print(f"{script.seed}: {script.wrong[0][:300]}", flush=True)
        if sys.stderr.isatty():
            left_s = (arguments.scripts - tried) / rate
            progress = f"{tried} of {arguments.scripts}, {rate:.0f}/s, {left_s:.0f} s to go"
            print(f"\r{progress:60}", end="\r", file=sys.stderr, flush=True)
    rate = tried / (time.perf_counter() - began_at)
    print(f"{len(found)} of {tried} broke a promise, {rate:.1f} scripts/s")
    for name, number in count_kinds(found).most_common():
        print(f"{number:6} {name}")
    for script in found[: arguments.show]:
        print(f"\n# {script.seed}: {script.wrong[0][:200]}")
        print(",\n".join(map(repr, shortest(script))))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
