"""One long row beside short ones: what do the short ones pay for it?

    python -m benchmarks.long_context [--tokens 6000] [--short 200] [--streams 7] [--repeats 5]

An engine that decodes the long row, one that does not, and BatchGenerator with the long row;
two of the processes are stopped (SIGSTOP) while the third is measured, in turn. Shown: the time
between two tokens of a short row, and the memory that MLX has in use for the short rows beside
what the ledger charges. Prefill of the long prompt takes minutes on a CPU. Writes
results/long_context.json.
"""

import argparse
import itertools
import statistics
import sys
from dataclasses import replace
from typing import Any

from benchmarks.children import stopped
from benchmarks.engine_alone import EngineAlone, sampling
from benchmarks.loads import mixed_prompts, tokenizer
from benchmarks.measures import print_table, ratios, save, shown, spread
from benchmarks.plain_mlx_lm import PlainProcess
from worker.link.facts import EngineMeasured, StepCompleted
from worker.link.orders import Sampling
from worker.models import demo_model

_ENDLESS = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=6000, help="of the long row")
    parser.add_argument("--short", type=int, default=200, help="tokens of each other")
    parser.add_argument("--streams", type=int, default=7, help="short rows")
    parser.add_argument("--max-tokens", type=int, default=96, help="of each short row")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    folder = str(demo_model.folder())
    (long_prompt,) = mixed_prompts(1, arguments.tokens, arguments.tokens, 99)
    prompts = [
        mixed_prompts(arguments.streams, arguments.short, arguments.short, repeat)
        for repeat in range(arguments.repeats)
    ]
    with EngineAlone(folder) as alone, EngineAlone(folder) as beside, PlainProcess(folder) as plain:
        with stopped(alone.pid, plain.pid):
            print("engine: prefill of the long row", file=sys.stderr)
            _start_long(beside, long_prompt)
            memory = {"long": _memory(beside)}
        runs: list[dict[str, float]] = []
        with stopped(beside.pid, plain.pid):
            memory["nothing"] = _memory(alone)
        for repeat in range(arguments.repeats):
            print(f"run {repeat + 1}/{arguments.repeats}", file=sys.stderr)
            with stopped(beside.pid, plain.pid):
                gap_s, memory["alone"] = _short_rows(alone, prompts[repeat], arguments.max_tokens)
                run = {"alone_ms": gap_s * 1000}
            with stopped(alone.pid, plain.pid):
                gap_s, memory["beside"] = _short_rows(beside, prompts[repeat], arguments.max_tokens)
                run |= {"beside_ms": gap_s * 1000}
            runs.append(run)
        with stopped(alone.pid, beside.pid):
            print("BatchGenerator: prefill of the long row", file=sys.stderr)
            theirs = plain.long_context(long_prompt, prompts, arguments.max_tokens)
    _report(runs, memory, theirs)


def _never_ending() -> Sampling:
    """Greedy, without the end of a text."""
    return replace(sampling(), logit_bias={str(tokenizer().eos_token_id): -100.0})


def _start_long(engine: EngineAlone, prompt: list[int]) -> None:
    number = engine.submit(prompt, _ENDLESS, _never_ending())
    while not any(output.sequence == number for output in engine.wait_for(StepCompleted).outputs):
        pass


def _memory(engine: EngineAlone) -> dict[str, int]:
    """What MLX has in use and what the ledger charges, in bytes; the second figure from now on
    is of now."""
    for _ in range(2):
        measured = engine.wait_for(EngineMeasured)
    return {"mlx": measured.active_memory_bytes, "ledger": measured.kv_bytes}


def _short_rows(
    engine: EngineAlone, prompts: list[list[int]], max_tokens: int
) -> tuple[float, dict[str, int]]:
    """The mean time between two tokens of a row while all run, and the memory then. The rows run
    again where the engine, which tells its memory once a second, did not tell it meanwhile."""
    gaps_s, memory = [], None
    while memory is None:
        gap_s, memory = _short_rows_once(engine, prompts, max_tokens)
        gaps_s.append(gap_s)
    return statistics.fmean(gaps_s), memory


def _short_rows_once(
    engine: EngineAlone, prompts: list[list[int]], max_tokens: int
) -> tuple[float, dict[str, int] | None]:
    running = {engine.submit(prompt, max_tokens, _never_ending()) for prompt in prompts}
    times: dict[int, list[float]] = {number: [] for number in running}
    memory = None
    begun = done = False
    while running:
        outputs = engine.wait_for(StepCompleted)
        now = engine.received_at
        for output in outputs.outputs:
            if output.sequence in running and not done:
                times[output.sequence].append(now)
            if output.sequence in running and output.finish_reason is not None:
                running.remove(output.sequence)
                done = True
        if all(times.values()) and not done:
            if not begun:
                engine.measured = None  # what it had before all ran
            begun = True
            if (measured := engine.measured) is not None:
                memory = {"mlx": measured.active_memory_bytes, "ledger": measured.kv_bytes}
    return _mean_gap(list(times.values())), memory


def _mean_gap(times: list[list[float]]) -> float:
    begin = max(each[0] for each in times)
    gaps = [
        later - earlier
        for each in times
        for earlier, later in itertools.pairwise(each)
        if earlier >= begin
    ]
    return statistics.fmean(gaps)


def _report(
    runs: list[dict[str, float]], memory: dict[str, dict[str, int]], theirs: dict[str, Any]
) -> None:
    alone, beside = (spread(run[name] for run in runs) for name in ("alone_ms", "beside_ms"))
    ratio = spread(run["beside_ms"] / run["alone_ms"] for run in runs)
    plain_alone = spread(seconds * 1000 for seconds in theirs["alone_s"])
    plain_beside = spread(seconds * 1000 for seconds in theirs["beside_s"])
    plain_ratio = ratios(theirs["beside_s"], theirs["alone_s"])
    print_table(
        f"mean time between two tokens of a short row, medians of {len(runs)} (minimum-maximum)",
        ("", "alone, ms", "beside the long row, ms", "of alone"),
        [
            ("engine", *map(shown, (alone, beside, ratio))),
            ("BatchGenerator", *map(shown, (plain_alone, plain_beside, plain_ratio))),
        ],
    )
    rows = []
    kinds = {}
    for kind in ("mlx", "ledger"):
        one = {
            "long": memory["long"][kind] - memory["nothing"][kind],
            "short": memory["alone"][kind] - memory["nothing"][kind],
            "all": memory["beside"][kind] - memory["nothing"][kind],
        }
        kinds[kind] = one
        share = (one["all"] - one["long"]) / one["short"]
        rows.append((f"engine, {kind}", *map(_megabytes, one.values()), f"{share:.2f}"))
    one = {name: theirs["bytes"][name] for name in ("long", "short", "all")}
    share = (one["all"] - one["long"]) / one["short"]
    rows.append(("BatchGenerator, mlx", *map(_megabytes, one.values()), f"{share:.2f}"))
    print_table(
        "memory for keys and values, MB",
        ("", "long row", "short rows alone", "all", "short rows beside, of alone"),
        rows,
    )
    for name in ("long", "short", "all"):
        print(f"ledger of MLX, {name}: {kinds['ledger'][name] / kinds['mlx'][name]:.3f}")
    result = {"runs": runs, "memory": kinds, "ratio": ratio, "plain": theirs}
    print(f"written to {save('long_context', result)}")


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.1f}"


if __name__ == "__main__":
    main()
