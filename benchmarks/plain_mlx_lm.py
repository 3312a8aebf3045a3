"""The limit and the peer: mlx-lm's model and its BatchGenerator as they come, in a process of
their own, with the same BLAS and threads as an engine.

The process reads orders as JSON lines on standard input and answers each with one line.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.children import started
from benchmarks.measures import Run, StreamClock
from benchmarks.threads import as_many_threads


class PlainProcess:
    """The process, as benchmarks use it; a context manager.

    Attributes:
        pid: of the process.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __enter__(self) -> "PlainProcess":
        command = [sys.executable, "-m", "benchmarks.plain_mlx_lm", self._folder]
        with contextlib.ExitStack() as stack:
            process = started(command, as_many_threads(), stdout=subprocess.PIPE, text=True)
            self._process = stack.enter_context(process)
            self.pid = int(self._read()["pid"])  # loaded
            self._until_exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._until_exit.close()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        *,
        samplers: Sequence[dict[str, float]] = (),
        prefill_step_size: int | None = None,
    ) -> tuple[Run, list[list[int]]]:
        """Generate with BatchGenerator, greedy or each prompt with a sampler of its own.

        Args:
            samplers: `temp`, `top_p` of each prompt.
        """
        answer = self._ask(
            do="generate", prompts=prompts, max_tokens=max_tokens, samplers=list(samplers),
            prefill_step_size=prefill_step_size,
        )  # fmt: skip
        tokens = answer.pop("token_ids")
        return Run(**answer), tokens

    def stall(
        self, prompts: Sequence[Sequence[int]], long_prompt: Sequence[int], running_first: int
    ) -> tuple[float, float]:
        """The longest gap of a stream while a long prompt comes in, and that one's time to its
        first token, in seconds."""
        answer = self._ask(
            do="stall", prompts=prompts, long_prompt=long_prompt, running_first=running_first
        )
        return answer["gap"], answer["first"]

    def long_context(
        self,
        long_prompt: Sequence[int],
        prompts: Sequence[Sequence[Sequence[int]]],
        max_tokens: int,
    ) -> dict[str, Any]:
        """Several times some prompts, first alone and then beside a long one.

        Returns:
            `alone_s`, `beside_s`: for each time, the mean between two tokens of a row;
            `bytes`: what MLX has in use for the `long` row, the `short` ones alone, and `all`.
        """
        return self._ask(
            do="long_context", long_prompt=long_prompt, prompts=prompts, max_tokens=max_tokens
        )

    def forward(self, prompts: Sequence[Sequence[int]], steps: int) -> list[float]:
        """Seconds of each of so many bare forward passes of one token a prompt, the likeliest;
        to find that one is not counted. All prompts are cut to the shortest."""
        answer = self._ask(do="forward", prompts=prompts, steps=steps)
        return [float(seconds) for seconds in answer["seconds"]]

    def prefill(self, tokens: int, chunk: int) -> float:
        """Seconds to put a prompt into an empty cache."""
        return float(self._ask(do="prefill", tokens=tokens, chunk=chunk)["seconds"])

    def _ask(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the process with plain mlx-lm ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> None:
    from worker.engine.blas import load_fast_blas

    load_fast_blas()

    from mlx_lm.utils import load

    network, tokenizer = load(sys.argv[1])[:2]
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for order in _orders():
        match order.pop("do"):
            case "generate":
                answer = _generate(network, tokenizer, **order)
            case "stall":
                answer = _stall(network, **order)
            case "long_context":
                answer = _long_context(network, **order)
            case "forward":
                answer = {"seconds": _forward(network, **order)}
            case "prefill":
                answer = {"seconds": _prefill(network, **order)}
        print(json.dumps(answer), flush=True)


def _orders() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def _generate(
    network: Any,
    tokenizer: Any,
    prompts: list[list[int]],
    max_tokens: int,
    samplers: list[dict[str, float]],
    prefill_step_size: int | None,
) -> dict[str, Any]:
    from mlx_lm.generate import BatchGenerator
    from mlx_lm.sample_utils import make_sampler

    run = Run()
    options = {"prefill_step_size": prefill_step_size} if prefill_step_size else {}
    ends = [[token] for token in tokenizer.eos_token_ids]
    generator = BatchGenerator(network, stop_tokens=ends, **options)
    started = time.perf_counter()
    cpu = time.process_time()
    own = {"samplers": [make_sampler(**each) for each in samplers]} if samplers else {}
    uids = generator.insert(prompts, [max_tokens] * len(prompts), **own)
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
    return {**run.fields(), "token_ids": [tokens[uid] for uid in uids]}


def _stall(
    network: Any, prompts: list[list[int]], long_prompt: list[int], running_first: int
) -> dict[str, float]:
    from mlx_lm.generate import BatchGenerator

    generator = BatchGenerator(network)
    last = dict.fromkeys(generator.insert(prompts, [400] * len(prompts)), 0.0)
    counts = dict.fromkeys(last, 0)
    long_one: int | None = None
    asked_at = longest = 0.0
    while True:
        responses = generator.next_generated()
        now = time.perf_counter()
        for response in responses:
            if response.uid == long_one:
                generator.close()
                return {"gap": longest, "first": now - asked_at}
            counts[response.uid] += 1
            if long_one is not None:
                longest = max(longest, now - max(last[response.uid], asked_at))
            last[response.uid] = now
        if long_one is None and min(counts.values()) >= running_first:
            (long_one,) = generator.insert([long_prompt], [2])
            asked_at = now


def _long_context(
    network: Any, long_prompt: list[int], prompts: list[list[list[int]]], max_tokens: int
) -> dict[str, Any]:
    import mlx.core as mx
    from mlx_lm.generate import BatchGenerator

    nothing = mx.get_active_memory()
    alone_s, beside_s = [], []
    for some in prompts:
        generator = BatchGenerator(network)
        gap_s, short = _gap_of(generator, some, max_tokens)
        alone_s.append(gap_s)
        generator.close()
    del generator
    generator = BatchGenerator(network)
    generator.insert([long_prompt], [len(prompts) * max_tokens * 4])
    while not generator.next_generated():
        pass
    generator.next_generated()
    long = mx.get_active_memory()
    for some in prompts:
        gap_s, everything = _gap_of(generator, some, max_tokens)
        beside_s.append(gap_s)
    generator.close()
    sizes = {"long": long - nothing, "short": short - nothing, "all": everything - nothing}
    return {"alone_s": alone_s, "beside_s": beside_s, "bytes": sizes}


def _gap_of(generator: Any, prompts: list[list[int]], max_tokens: int) -> tuple[float, int]:
    """The mean time between two steps while all prompts generate, and the memory then."""
    import mlx.core as mx

    uids = set(generator.insert(prompts, [max_tokens] * len(prompts)))
    begun: set[int] = set()
    times: list[float] = []
    used = 0
    ended = False
    while uids:
        responses = [each for each in generator.next_generated() if each.uid in uids]
        begun |= {each.uid for each in responses}
        if begun >= uids and not ended:
            times.append(time.perf_counter())
            used = mx.get_active_memory()
        for response in responses:
            if response.finish_reason is not None:
                uids.discard(response.uid)
                ended = True
    return (times[-1] - times[0]) / (len(times) - 1), used


def _forward(network: Any, prompts: list[list[int]], steps: int) -> list[float]:
    import mlx.core as mx
    from mlx_lm.models.cache import BatchKVCache

    def likeliest(logits: Any) -> Any:
        tokens = mx.argmax(logits[:, -1:], axis=-1)
        mx.eval(tokens)
        return tokens

    cache = [BatchKVCache([0] * len(prompts)) for _ in network.layers]
    shortest = min(map(len, prompts))
    tokens = likeliest(network(mx.array([prompt[:shortest] for prompt in prompts]), cache=cache))
    times = []
    for _ in range(steps):
        started = time.perf_counter()
        logits = network(tokens, cache=cache)
        mx.eval(logits)
        times.append(time.perf_counter() - started)
        tokens = likeliest(logits)
    return times


def _prefill(network: Any, tokens: int, chunk: int) -> float:
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(network)
    started = time.perf_counter()
    for begin in range(0, tokens, chunk):
        count = min(chunk, tokens - begin)
        network(mx.zeros((1, count), dtype=mx.uint32), cache=cache)
        mx.eval([layer.state for layer in cache])
        mx.clear_cache()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
