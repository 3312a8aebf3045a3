"""What a step costs beside the model's own work: the engine, mlx-lm's BatchGenerator and the bare
forward pass on a model of two small layers with random weights, greedy.

    python -m benchmarks.step [--rows 1,8,32] [--repeats 7] [--max-tokens 400]

All sides run in turns of two seconds, on as many threads. A step is the median of those in which
all rows run. Prints a table and writes results/step.json.
"""

import argparse
import functools
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.progress import track

from benchmarks.engine_alone import EngineAlone
from benchmarks.interleaved import interleave
from benchmarks.measures import print_table, ratios, save, shown, spread
from benchmarks.plain_mlx_lm import PlainProcess
from tests.models import make_tiny_model

_SIDES = ("forward", "BatchGenerator", "engine")
_PROMPT_TOKENS = 10

Steps = dict[str, list[float]]
"""Milliseconds a step of each side, a value a run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,8,32", help="how many rows step together")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--max-tokens", type=int, default=400)
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.rows.split(",")]
    runs: dict[int, Steps] = {count: {side: [] for side in _SIDES} for count in counts}
    with tempfile.TemporaryDirectory() as scratch:
        context = 2 * (_PROMPT_TOKENS + arguments.max_tokens)
        folder = str(make_tiny_model(Path(scratch) / "m", context_tokens=context, endless=True))
        with (
            PlainProcess(folder) as forward,
            PlainProcess(folder) as plain,
            EngineAlone(folder) as engine,
        ):
            sides = (forward, plain, engine)
            _run(*sides, max(counts), arguments.max_tokens)  # not counted
            for _ in track(range(arguments.repeats), "runs"):
                for count in counts:
                    for side, step_ms in _run(*sides, count, arguments.max_tokens).items():
                        runs[count][side].append(step_ms)
    _report(runs, arguments.repeats)


def _run(
    forward: PlainProcess, plain: PlainProcess, engine: EngineAlone, rows: int, tokens: int
) -> dict[str, float]:
    """Milliseconds a step of each side."""
    prompts = [[1 + row + place for place in range(_PROMPT_TOKENS)] for row in range(rows)]
    jobs: dict[str, Callable[[], list[float]]] = {
        "forward": functools.partial(forward.forward, prompts, tokens),
        "BatchGenerator": lambda: plain.generate(prompts, tokens)[0].full_steps_s,
        "engine": lambda: engine.generate(prompts, tokens)[0].full_steps_s,
    }
    pids = {"forward": [forward.pid], "BatchGenerator": [plain.pid], "engine": [engine.pid]}
    steps = interleave(jobs, pids)
    return {side: 1000 * statistics.median(some) for side, some in steps.items()}


def _report(runs: dict[int, Steps], repeats: int) -> None:
    figures = {
        count: {
            side: {
                "step_ms": spread(values),
                "of_forward": ratios(values, steps["forward"]),
                "of_plain": ratios(values, steps["BatchGenerator"]),
            }
            for side, values in steps.items()
        }
        for count, steps in runs.items()
    }
    print_table(
        f"a step, two layers, float32, medians of {repeats} (minimum-maximum)",
        ("", "ms", "of the forward pass", "of BatchGenerator"),
        [
            (f"{count} rows, {side}", *map(shown, found.values()))
            for count, sides in figures.items()
            for side, found in sides.items()
        ],
    )
    print(f"written to {save('step', {'repeats': repeats, 'medians': figures, 'runs': runs})}")


if __name__ == "__main__":
    main()
