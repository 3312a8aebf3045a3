"""A long prompt arrives while streams run: how long does the slowest of them wait?

    python -m benchmarks.stall [--tokens 2000] [--streams 8] [--repeats 5]

The engine alone beside BatchGenerator with its default chunk, in turn. Shown: the longest time
between two tokens of any stream while the long prompt is prefilled, and the long prompt's time
to its first token beside what it takes alone. Writes results/stall.json.
"""

import argparse
import sys
import time
from typing import Any

from benchmarks.engine_alone import EngineAlone
from benchmarks.loads import mixed_prompts, story_prompts
from benchmarks.measures import print_table, save, spread
from benchmarks.plain_mlx_lm import PlainProcess
from worker.link.facts import StepCompleted
from worker.models import demo_model

_RUNNING_FIRST = 4
"""Tokens of every stream before the long prompt comes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-stall-ms", type=int, default=500)
    arguments = parser.parse_args()
    folder = str(demo_model.folder())
    runs: list[dict[str, float]] = []
    with (
        PlainProcess(folder) as plain,
        EngineAlone(folder, max_stall_ms=arguments.max_stall_ms) as engine,
    ):
        engine.generate(story_prompts(2), 4)
        for repeat in range(arguments.repeats):
            print(f"run {repeat + 1}/{arguments.repeats}", file=sys.stderr)
            (long_prompt,) = mixed_prompts(1, arguments.tokens, arguments.tokens, repeat)
            streams = story_prompts(arguments.streams)
            alone, _ = engine.generate([long_prompt], 2)
            gap_s, first_s = _engine(engine, streams, long_prompt)
            plain_gap_s, plain_first_s = plain.stall(streams, long_prompt, _RUNNING_FIRST)
            runs.append(
                {
                    "gap_ms": gap_s * 1000,
                    "ttft_s": first_s,
                    "alone_s": alone.first_token_s[0],
                    "ttft_of_alone": first_s / alone.first_token_s[0],
                    "plain_gap_ms": plain_gap_s * 1000,
                    "plain_ttft_s": plain_first_s,
                }
            )
    _report(runs, arguments.max_stall_ms)


def _engine(
    engine: EngineAlone, streams: list[list[int]], long_prompt: list[int]
) -> tuple[float, float]:
    """The longest gap of a stream, and the long prompt's time to its first token, in seconds."""
    running = {engine.submit(prompt, 400) for prompt in streams}
    counts = dict.fromkeys(running, 0)
    last = dict.fromkeys(running, 0.0)
    longest = 0.0
    first_at: float | None = None
    asked_at = 0.0
    long_sequence: int | None = None
    while first_at is None:
        outputs = engine.wait_for(StepCompleted).outputs
        now = time.perf_counter()
        for output in outputs:
            if output.sequence == long_sequence:
                first_at = now
            elif output.sequence in running:
                counts[output.sequence] += 1
                if long_sequence is not None:
                    longest = max(longest, now - max(last[output.sequence], asked_at))
                last[output.sequence] = now
        if long_sequence is None and min(counts.values()) >= _RUNNING_FIRST:
            long_sequence = engine.submit(long_prompt, 2)
            asked_at = now
    engine.cancel_all([*running, *([long_sequence] if long_sequence is not None else [])])
    return longest, first_at - asked_at


def _report(runs: list[dict[str, float]], max_stall_ms: int) -> None:
    names = {
        "gap_ms": "longest gap, engine, ms",
        "plain_gap_ms": "longest gap, BatchGenerator, ms",
        "ttft_s": "long prompt's first token, engine, s",
        "alone_s": "the same alone, s",
        "ttft_of_alone": "of alone",
        "plain_ttft_s": "long prompt's first token, BatchGenerator, s",
    }
    medians: dict[str, Any] = {name: spread(run[name] for run in runs) for name in names}
    print_table(
        f"medians of {len(runs)} (minimum-maximum); max_decode_stall_ms {max_stall_ms}",
        ("", "median", "minimum", "maximum"),
        (
            (shown, *(f"{medians[name][which]:.2f}" for which in ("median", "min", "max")))
            for name, shown in names.items()
        ),
    )
    kept = sum(run["gap_ms"] <= 1.25 * max_stall_ms for run in runs)
    print(f"gap within 1.25 times the stall allowed: {kept} of {len(runs)} runs")
    print(f"written to {save('stall', {'medians': medians, 'runs': runs})}")


if __name__ == "__main__":
    main()
