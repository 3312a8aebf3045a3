"""The peer: mlx-lm's BatchGenerator as it comes, in a process of its own.

Reads a JSON list of prompts (token ids) and max_tokens from each line of standard input and
prints one JSON line for each: what it took. Same BLAS and threads as an engine.
"""

import json
import os
import sys
import time

from benchmarks.measures import Run, StreamClock
from worker.engine.blas import load_fast_blas


def main() -> None:
    load_fast_blas()

    from mlx_lm.generate import BatchGenerator
    from mlx_lm.utils import load

    network, tokenizer = load(sys.argv[1])[:2]
    ends = [[token] for token in tokenizer.eos_token_ids]
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        run = Run()
        generator = BatchGenerator(network, stop_tokens=ends)
        started = time.perf_counter()
        cpu = time.process_time()
        uids = generator.insert(order["prompts"], [order["max_tokens"]] * len(order["prompts"]))
        clocks = {uid: StreamClock(run) for uid in uids}
        tokens: dict[int, list[int]] = {uid: [] for uid in uids}
        while responses := generator.next_generated():
            for response in responses:
                if response.finish_reason != "stop":
                    tokens[response.uid].append(response.token)
                    clocks[response.uid].tick()
        run.seconds = time.perf_counter() - started
        run.cpu_s = {"plain": time.process_time() - cpu}
        generator.close()
        answer = {
            "tokens": run.tokens,
            "seconds": run.seconds,
            "first_token_s": run.first_token_s,
            "gaps_s": run.gaps_s,
            "cpu_s": run.cpu_s,
            "token_ids": [tokens[uid] for uid in uids],
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
