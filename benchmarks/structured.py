"""What schemas cost: 32 rows of which none, one or all are bound, each to a schema of its own; and
the first token of a short answer with a schema that nobody has sent before.

    python -m benchmarks.structured [--rows 32] [--repeats 7] [--max-tokens 60] [--pairs 40]

Four engines take turns of two seconds, two of them with free rows: how much these differ says what
a difference means. A step is the mean of those in which all rows run, without those of more than
three times their median, in which the machine did something else. Prints a table and writes
results/structured.json.
"""

import argparse
import functools
import statistics
from typing import Any

from rich.progress import track

from benchmarks.engine_alone import EngineAlone
from benchmarks.interleaved import interleave
from benchmarks.measures import print_table, ratios, save, shown, spread
from shared.messages.structured import Structure
from worker.models import demo_model

_SIDES = ("free", "control", "one bound", "all bound")
_STRAY = 3.0
_ANSWER_TOKENS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--max-tokens", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=40, help="of short answers, one at a time")
    arguments = parser.parse_args()
    rows, tokens = arguments.rows, arguments.max_tokens
    folder = str(demo_model.folder())
    steps: dict[str, list[float]] = {side: [] for side in _SIDES}
    with (
        EngineAlone(folder) as free,
        EngineAlone(folder) as control,
        EngineAlone(folder) as one,
        EngineAlone(folder) as every,
    ):
        engines = dict(zip(_SIDES, (free, control, one, every), strict=True))
        bound = {"free": 0, "control": 0, "one bound": 1, "all bound": rows}
        jobs = {
            side: functools.partial(_step_ms, engine, rows, bound[side], tokens)
            for side, engine in engines.items()
        }
        pids = {side: [engine.pid] for side, engine in engines.items()}
        for number in track(range(arguments.repeats + 1), "runs"):
            for side, step_ms in interleave(jobs, pids).items():
                if number:  # the first is not counted
                    steps[side].append(step_ms)
    with EngineAlone(folder) as engine:
        first_ms = _first_tokens(engine, arguments.pairs)
    _report(steps, first_ms, rows)


def _step_ms(engine: EngineAlone, rows: int, bound: int, tokens: int) -> float:
    prompts = [f"Tell me about city number {row}." for row in range(rows)]
    fields: list[dict[str, Any]] = [{"ignore_eos": True} for _ in prompts]
    for row in range(bound):
        fields[row]["structure"] = _structure(row, endless=True)
    found = engine.generate(prompts, tokens, fields=fields)[0].full_steps_s
    longest = _STRAY * statistics.median(found)
    return 1000 * statistics.mean(seconds for seconds in found if seconds <= longest)


def city_schema(number: int) -> dict[str, Any]:
    """One like those of people's programs, and not like that of any other number."""
    return {
        "type": "object",
        "properties": {
            f"name_{number}": {"type": "string"},
            "country": {"type": "string", "maxLength": 40},
            "people": {"type": "integer", "minimum": 0},
            "capital": {"type": "boolean"},
            "languages": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
            "climate": {"enum": ["hot", "mild", "cold", None]},
        },
        "required": [f"name_{number}", "country", "people", "capital", "languages", "climate"],
        "additionalProperties": False,
    }


def _structure(number: int, *, endless: bool = False) -> Structure:
    city = city_schema(number)
    schema = {"type": "array", "items": city, "minItems": 500} if endless else city
    return Structure("json", schema, "response_format.json_schema.schema")


def _first_tokens(engine: EngineAlone, pairs: int) -> dict[str, list[float]]:
    """Milliseconds to the first token, of answers without and with a schema in turn."""
    found: dict[str, list[float]] = {"free": [], "bound": []}
    for number in track(range(pairs + 1), "first tokens"):
        for side in found:
            # From the first word on no prompt is like another: nothing is kept of it.
            prompt = (
                f"{side} {number}: " + "tell me all that you know about this city, please. " * 4
            )
            fields = {"structure": _structure(1000 + number)} if side == "bound" else {}
            run, _ = engine.generate([prompt], _ANSWER_TOKENS, fields=[fields])
            if number:
                found[side].append(1000 * run.first_token_s[0])
    return found


def _report(steps: dict[str, list[float]], first_ms: dict[str, list[float]], rows: int) -> None:
    of_free = {side: ratios(values, steps["free"]) for side, values in steps.items()}
    print_table(
        f"a step of {rows} rows, demo model, float32, medians of {len(steps['free'])} "
        "(minimum-maximum)",
        ("", "ms", "of free rows"),
        [(side, shown(spread(values)), shown(of_free[side], 3)) for side, values in steps.items()],
    )
    of_free_first = ratios(first_ms["bound"], first_ms["free"])
    print_table(
        f"first token of {_ANSWER_TOKENS}, a new schema each, {len(first_ms['free'])} pairs",
        ("", "ms", "of free"),
        [
            ("free", shown(spread(first_ms["free"])), ""),
            ("bound", shown(spread(first_ms["bound"])), shown(of_free_first)),
        ],
    )
    result = {"rows": rows, "step_ms": steps, "of_free": of_free, "first_ms": first_ms}
    print(f"written to {save('structured', result)}")


if __name__ == "__main__":
    main()
