"""What is kept in 8 bits (`kv_cache.bits: 8`): its size, and how far answers stay the same.

    python -m benchmarks.kv_bits [--texts 12] [--answer 64] [--forced 128]

Prompts of 300 to 1,200 tokens out of this project's own pages are prefilled by the demo model, and
kept in files natively and in 8 bits. From each cache that is read again, and from the one that was
computed, the text goes on: greedily, and along its own words, where the distributions of every next
token are compared. Natively nothing may differ. Writes results/kv_bits.json.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.loads import prose
from benchmarks.measures import print_table, save
from shared.ids import ModelId
from worker.engine.blas import load_fast_blas
from worker.link.orders import LoadModel
from worker.models import demo_model

_SHORTEST, _LONGEST = 300, 1200
_KINDS = {"native": None, "8 bits": 8}


@dataclass(slots=True)
class Outcome:
    """Of one way to keep prompts.

    Attributes:
        same_tokens: of each answer, before the first that is another one.
        divergence: of each next token of the texts, in nats.
    """

    memory_bytes: int = 0
    disk_bytes: int = 0
    same_tokens: list[int] = field(default_factory=list)
    divergence: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--answer", type=int, default=64, help="greedy tokens after each")
    parser.add_argument("--forced", type=int, default=128, help="tokens of each text behind it")
    arguments = parser.parse_args()
    load_fast_blas()

    # Only now may MLX be imported.
    import mlx.core as mx

    from benchmarks.kept_prompts import token_bytes
    from worker.engine.device import retain_freed_memory
    from worker.engine.model import load_model

    retain_freed_memory()
    model = load_model(LoadModel(ModelId("model"), str(demo_model.folder())))
    steps = (_LONGEST - _SHORTEST) // max(1, arguments.texts - 1)
    lengths = [_SHORTEST + number * steps for number in range(arguments.texts)]
    outcomes = _compare(model, lengths, arguments)
    layouts = {
        name: {kind: token_bytes(model, dtype, bits) for kind, bits in _KINDS.items()}
        for name, dtype in {"float32": mx.float32, "bfloat16": mx.bfloat16}.items()
    }
    _report(outcomes, layouts, arguments.answer)
    result = {
        "lengths": lengths,
        "answer": arguments.answer,
        "forced": arguments.forced,
        "token_bytes": layouts,
        "outcomes": {kind: asdict(outcome) for kind, outcome in outcomes.items()},
    }
    print(f"written to {save('kv_bits', result)}")


def _compare(
    model: Any, lengths: Sequence[int], arguments: argparse.Namespace
) -> dict[str, Outcome]:
    from benchmarks.continuations import divergences, greedy, log_probabilities
    from benchmarks.kept_prompts import KeptPrompts, prefilled

    outcomes = {kind: Outcome() for kind in _KINDS}
    room = max(arguments.answer, arguments.forced)
    network = model.network
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlx-kv-")))
        kept = {
            kind: stack.enter_context(KeptPrompts(model, folder / kind, bits))
            for kind, bits in _KINDS.items()
        }
        for number, text in enumerate(prose([length + arguments.forced for length in lengths])):
            print(f"text {number + 1}/{len(lengths)}", file=sys.stderr)
            prompt = text[: lengths[number]]
            forced = text[len(prompt) - 1 : -1]
            job = prefilled(model, prompt, room)
            for prompts in kept.values():
                prompts.keep(job)
            answer = greedy(network, job.cache, prompt[-1], arguments.answer)
            computed = log_probabilities(network, job.cache, forced)
            for kind, outcome in outcomes.items():
                cache = kept[kind].restored(job, room)
                told = greedy(network, cache, prompt[-1], arguments.answer)
                outcome.same_tokens.append(_same(answer, told))
                outcome.divergence += divergences(
                    computed, log_probabilities(network, cache, forced)
                )
        for kind, prompts in kept.items():
            outcomes[kind].memory_bytes = prompts.memory_bytes
            outcomes[kind].disk_bytes = prompts.disk_bytes
    return outcomes


def _same(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first tokens are equal."""
    pairs = enumerate(zip(one, other, strict=True))
    return next((place for place, (a, b) in pairs if a != b), len(one))


def _report(
    outcomes: dict[str, Outcome], layouts: dict[str, dict[str, float]], answer: int
) -> None:
    native = outcomes["native"]
    texts = len(native.same_tokens)
    columns = ("", "MB in memory", "on disk", "same tokens", "same answers")
    print_table(
        f"{texts} prompts kept, answers of {answer} tokens, {len(native.divergence)} next tokens",
        (*columns, "KL mean", "p50", "p99", "max"),
        [
            (
                kind,
                f"{each.memory_bytes / 1e6:.1f} ({each.memory_bytes / native.memory_bytes:.3f})",
                f"{each.disk_bytes / 1e6:.1f} ({each.disk_bytes / native.disk_bytes:.3f})",
                f"{sum(each.same_tokens) / (answer * texts):.3f}",
                f"{each.same_tokens.count(answer)}/{texts}",
                *(f"{nats:.2g}" for nats in _spread(each.divergence)),
            )
            for kind, each in outcomes.items()
        ],
    )
    rows = []
    for name, sizes in layouts.items():
        ratio = sizes["8 bits"] / sizes["native"]
        rows.append((name, *(f"{sizes[kind]:.0f}" for kind in _KINDS), f"{ratio:.3f}"))
    print_table("bytes kept of a token, by the model's type", ("", *_KINDS, "ratio"), rows)


def _spread(nats: Sequence[float]) -> tuple[float, float, float, float]:
    """Mean, median, 99th percentile and most."""
    ordered = sorted(nats)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return statistics.fmean(ordered), statistics.median(ordered), p99, ordered[-1]


if __name__ == "__main__":
    main()
