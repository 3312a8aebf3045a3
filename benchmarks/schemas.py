"""Do structured answers hold: is every tool call that ends by itself valid?

    python -m benchmarks.schemas [--functions 3361] [--demo-functions 650] [--schemas DIR]

Each function of the Berkeley leaderboard is asked for once, as a strict tool with `tool_choice:
required`, of a model of random weights and of the demo model, through the engine, many rows at a
time. Tokens that may close something are made likelier by `logit_bias`, so that answers end.
Another library judges the calls. Then random tokens go through the grammars of the same functions,
and of the JSON schemas in a folder (such as JSONSchemaBench's `data`), alone: are answers valid,
and what does each compilation, mask and token take? Writes results/schemas.json.
"""

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from llguidance.numpy import allocate_token_bitmask
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, track
from tokenizers import Tokenizer

from benchmarks.bfcl import functions
from benchmarks.engine_alone import EngineAlone
from benchmarks.measures import print_table, save
from shared.errors import InvalidRequest
from shared.messages.schemas import check_schema
from shared.messages.structured import Structure
from tests.models import make_tiny_model
from tests.worker.grammar.validity import invalidity
from worker.answer.grammar import AnswerConstraint, answer_grammar
from worker.answer.model_output_format import PLAIN_FORMAT
from worker.grammar.compiler import GrammarCompiler
from worker.link.facts import SequenceRejected, StepCompleted
from worker.link.orders import Sampling, ToolCallingOptions
from worker.models import demo_model

_CLOSING = frozenset('"}]')
_BIAS = 4.0
_CONTEXT_TOKENS = 16_384
_WALKS = 2
_WALK_TOKENS = 200
_HELD_MS = 5.0
_CONSOLE = Console(stderr=True)


@dataclass(slots=True)
class Outcome:
    """
    Attributes:
        ended: by themselves.
        cut: at their most tokens.
        failed: that the engine ended with an error, by what it said.
        invalid: what is wrong with those that are.
    """

    asked: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    valid: int = 0
    cut: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    invalid: list[str] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Times:
    """Of a processor, in milliseconds, with where each came from; compiling is told on the clock,
    as some of it runs on other threads."""

    compile: list[tuple[float, str]] = field(default_factory=list)
    mask: list[tuple[float, str]] = field(default_factory=list)
    consume: list[tuple[float, str]] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--functions", type=int, default=sys.maxsize, help="for random weights")
    parser.add_argument("--demo-functions", type=int, default=650)
    parser.add_argument(
        "--walked", type=int, default=sys.maxsize, help="functions, without a model"
    )
    parser.add_argument("--rows", type=int, default=32, help="asked for at a time")
    parser.add_argument("--max-tokens", type=int, default=300)
    parser.add_argument("--schemas", type=Path, help="a folder of JSON schemas")
    parser.add_argument("--count", type=int, default=500, help="how many of them")
    arguments = parser.parse_args()
    asked = functions()
    random.Random(1).shuffle(asked)
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as scratch:
        tiny = make_tiny_model(Path(scratch) / "tiny", context_tokens=_CONTEXT_TOKENS)
        for name, folder, count in (
            ("random weights", tiny, arguments.functions),
            ("demo model", demo_model.folder(), arguments.demo_functions),
        ):
            if count == 0:
                continue
            outcomes[name] = _through_engine(name, folder, asked[:count], arguments)
    walker = _Walker(demo_model.folder())
    schemas = [(each["name"], each["parameters"]) for each in asked[: arguments.walked]]
    outcomes["walks, functions"] = walker.through(schemas)
    if arguments.schemas is not None:
        paths = sorted(arguments.schemas.rglob("*.json"))
        random.Random(1).shuffle(paths)
        read = [(path.name, json.loads(path.read_text())) for path in paths[: arguments.count]]
        outcomes["walks, folder"] = walker.through(read)
    _report(outcomes, walker.times)


def _through_engine(
    name: str, folder: Path, asked: Sequence[dict[str, Any]], arguments: Any
) -> Outcome:
    outcome = Outcome()
    bias = {str(token_id): _BIAS for token_id in _closing_ids(folder)}
    waiting = list(enumerate(asked))[::-1]
    running: dict[int, tuple[dict[str, Any], list[str]]] = {}
    started = time.perf_counter()
    with EngineAlone(str(folder)) as engine, _progress() as progress:
        task = progress.add_task(f"{name}, functions", total=len(asked))
        while waiting or running:
            progress.update(task, completed=outcome.asked - len(running))
            while waiting and len(running) < arguments.rows:
                number, function = waiting.pop()
                name = re.sub(r"[^A-Za-z0-9_.:-]", "_", function["name"])[:128]
                tool = {**function, "name": name, "strict": True}
                calling = ToolCallingOptions([tool], required=True, parallel=False)
                how = Sampling(1.0, 1.0, 0, 0.0, 1.0, 0.0, 0.0, bias, number, None)
                sequence = engine.submit(
                    f"Call {name}.", arguments.max_tokens, how, calling=calling
                )
                running[sequence] = (function, [])
                outcome.asked += 1
            match engine.next_fact():
                case SequenceRejected() as refused:
                    _, pieces = running.pop(refused.sequence)
                    said = outcome.failed if pieces else outcome.refused
                    said[_reason(refused.message)] += 1
                case StepCompleted(outputs):
                    for output in outputs:
                        function, pieces = running[output.sequence]
                        pieces += [piece.arguments for piece in output.calls]
                        outcome.tokens += len(output.token_ids)
                        if output.finish_reason is not None:
                            del running[output.sequence]
                            _judge(outcome, output.finish_reason, "".join(pieces), function)
    outcome.seconds = time.perf_counter() - started
    return outcome


def _progress() -> Progress:
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=_CONSOLE)


def _judge(outcome: Outcome, ended_by: str, text: str, function: dict[str, Any]) -> None:
    if ended_by == "length":
        outcome.cut += 1
        return
    outcome.ended += 1
    wrong = invalidity(text, function["parameters"])
    if ended_by == "tool_calls" and wrong is None:
        outcome.valid += 1
    else:
        outcome.invalid.append(f"{function['name']}: {ended_by}: {wrong}: {text}")


class _Walker:
    """Random tokens through grammars, with the vocabulary of the demo model.

    Attributes:
        times: of all.
    """

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._end = int(self._tokenizer.token_to_id("<|im_end|>") or 0)
        size = self._tokenizer.get_vocab_size()
        self._compiler = GrammarCompiler(self._tokenizer.to_str(), size, [self._end])
        self._closes = np.zeros(self._compiler.tokenizer.vocab_size, dtype=bool)
        self._closes[_closing_ids(folder)] = True
        self._random = random.Random(1)
        self.times = Times()

    def through(self, schemas: Sequence[tuple[str, Any]]) -> Outcome:
        outcome = Outcome()
        started = time.perf_counter()
        for name, schema in track(schemas, "walks", console=_CONSOLE):
            outcome.asked += 1
            try:
                check_schema(schema)
                with _timed(self.times.compile, name, time.perf_counter):
                    self._compiler.check_schema(schema, "schema")
            except (InvalidRequest, ValueError) as error:
                outcome.refused[_reason(str(error))] += 1
                continue
            structure = Structure("json", schema, "schema")
            bound = AnswerConstraint(structure, [], False, False, opened=False, thinks=False)
            for _ in range(_WALKS):
                self._walk(outcome, name, answer_grammar(PLAIN_FORMAT, bound), schema)
        outcome.seconds = time.perf_counter() - started
        return outcome

    def _walk(self, outcome: Outcome, name: str, grammar: str, schema: Any) -> None:
        with _timed(self.times.compile, name, time.perf_counter):
            matcher = self._compiler.matcher(grammar)
        bitmask = allocate_token_bitmask(1, self._compiler.tokenizer.vocab_size)
        token_ids: list[int] = []
        while not matcher.stopped:
            if len(token_ids) == _WALK_TOKENS:
                outcome.cut += 1
                return
            with _timed(self.times.mask, name, time.thread_time):
                if not matcher.fill(bitmask, 0):
                    break
            token_id = self._draw(bitmask)
            if token_id == self._end:
                break
            token_ids.append(token_id)
            outcome.tokens += 1
            with _timed(self.times.consume, name, time.thread_time):
                matcher.consume(token_id)
        if matcher.error is not None:
            outcome.failed[_reason(matcher.error)] += 1
            return
        outcome.ended += 1
        text = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        if (wrong := invalidity(text, schema)) is None:
            outcome.valid += 1
        else:
            outcome.invalid.append(f"{name}: {wrong}: {text}")

    def _draw(self, bitmask: Any) -> int:
        allowed = np.unpackbits(bitmask.view(np.uint8)[0], bitorder="little").nonzero()[0]
        if self._random.random() < 0.5:
            if self._end in allowed:
                return self._end
            closing = allowed[self._closes[allowed]]
            allowed = closing if len(closing) else allowed
        return int(allowed[self._random.randrange(len(allowed))])


class _timed:
    def __init__(self, times: list[tuple[float, str]], name: str, clock: Any) -> None:
        self._times, self._name, self._clock = times, name, clock

    def __enter__(self) -> None:
        self._started = self._clock()

    def __exit__(self, *_: object) -> None:
        self._times.append(((self._clock() - self._started) * 1000, self._name))


def _closing_ids(folder: Path) -> list[int]:
    """Tokens that may close something, and the end of an answer."""
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    return [i for token, i in vocabulary.items() if _CLOSING & set(token) or token == "<|im_end|>"]


def _reason(message: str) -> str:
    """What was said, without the place and the figures of one schema."""
    said = message.split(": ", 1)[-1].splitlines()[0]
    return re.sub(r"[-\d.]+", "#", said)[:80]


def _report(outcomes: dict[str, Outcome], times: Times) -> None:
    print(
        f"bias of {_BIAS} on tokens with any of {' '.join(sorted(_CLOSING))} and on the end token"
    )
    print_table(
        "answers",
        ("", "asked", "refused", "failed", "cut", "ended", "valid", "tokens", "seconds"),
        (
            (
                *(name, f"{each.asked}", f"{each.refused.total()}", f"{each.failed.total()}"),
                *(f"{each.cut}", f"{each.ended}", f"{each.valid}", f"{each.tokens}"),
                f"{each.seconds:.0f}",
            )
            for name, each in outcomes.items()
        ),
    )
    figures: dict[str, dict[str, Any]] = {}
    for kind in ("compile", "mask", "consume"):
        ordered = sorted(getattr(times, kind))
        at = {"p50": len(ordered) // 2, "p99": int(len(ordered) * 0.99), "max": len(ordered) - 1}
        figures[kind] = {
            **{name: round(ordered[place][0], 4) for name, place in at.items()},
            "count": len(ordered),
            f"beyond {_HELD_MS:g} ms": sum(ms > _HELD_MS for ms, _ in ordered),
            "longest": [f"{name}: {ms:.2f}" for ms, name in ordered[-5:]],
        }
    print_table(
        "ms; what is not compiling is on the engine's thread",
        ("", "p50", "p99", "max", "count", f"beyond {_HELD_MS:g} ms"),
        (
            (kind, *(f"{each[key]:g}" for key in each if key != "longest"))
            for kind, each in figures.items()
        ),
    )
    for name, each in outcomes.items():
        for what, counted in (("refused", each.refused), ("failed", each.failed)):
            for reason, count in counted.most_common():
                print(f"{name}, {what}: {count} x {reason}")
        for line in each.invalid:
            print(f"{name}, INVALID: {line[:500]}")
    result = {
        name: {
            "asked": each.asked, "refused": each.refused, "failed": each.failed, "cut": each.cut,
            "ended": each.ended, "valid": each.valid, "invalid": each.invalid,
            "tokens": each.tokens, "seconds": each.seconds,
        }
        for name, each in outcomes.items()
    }  # fmt: skip
    print(f"written to {save('schemas', {'bias': _BIAS, 'answers': result, 'ms': figures})}")
    if any(each.invalid for each in outcomes.values()):
        raise SystemExit("not every answer was valid")


if __name__ == "__main__":
    main()
