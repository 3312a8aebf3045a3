"""Networks of mlx-lm that may be batched or not, and what the probe finds of each."""

import json
import re
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import pytest
from mlx_lm.models import llama

from tests.worker.engine.other_models import TOGETHER, VOCABULARY, WINDOW_TOKENS
from tests.worker.engine.watched_network import WatchedNetwork
from worker.engine import batching_verdicts
from worker.engine.batching_verdicts import (
    BatchingVerdict,
    BatchingVerdictStore,
    key,
    known_verdict,
)
from worker.engine.caches import CacheLayout
from worker.engine.prefill_cost import PrefillCost
from worker.engine.probe import find_verdict, probe

T = TypeVar("T")
_SPEED = PrefillCost(floor_s=0.001, token_s=0.0001)


def _result(passes: Generator[float, None, T]) -> T:
    while True:
        try:
            assert next(passes) == 1.0
        except StopIteration as end:
            result: T = end.value
            return result


def _probed(
    network: Any, layout: CacheLayout | None = None, *, most_tokens: int = 1024
) -> BatchingVerdict:
    return _result(probe(network, layout or CacheLayout(network), VOCABULARY, most_tokens))


class _Faulty:
    """A network with a fault of its subclass.

    Attributes:
        shapes: (rows, tokens of each) of every pass.
    """

    def __init__(self, real: Any) -> None:
        self.real = real
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        self.shapes.append(tokens.shape)
        return self.answer(self.real(tokens, cache=cache), *tokens.shape)

    def answer(self, logits: mx.array, rows: int, width: int) -> mx.array:
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class _Mixing(_Faulty):
    """Each row hears a little of the one before."""

    def answer(self, logits: mx.array, rows: int, width: int) -> mx.array:
        return logits + 0.1 * (mx.roll(logits, 1, 0) - logits)


class _ForOneRow(_Faulty):
    def answer(self, logits: mx.array, rows: int, width: int) -> mx.array:
        if rows > 1:
            raise ValueError("[convert] Only length-1 arrays")
        return logits


class _ForOddNumbers(_Faulty):
    """Of rows; what is prefilled together are two."""

    def answer(self, logits: mx.array, rows: int, width: int) -> mx.array:
        return logits if rows % 2 else logits * 1.5


class _Meaningless(_Faulty):
    def answer(self, logits: mx.array, rows: int, width: int) -> mx.array:
        return logits * float("nan")


class _Broken(_Faulty):
    def answer(self, logits: mx.array, rows: int, width: int) -> mx.array:
        raise TypeError("no such argument")


@pytest.mark.parametrize("kind", ["tiny", *TOGETHER])
def test_rows_of_every_kind_of_cache_go_together(
    networks: dict[str, Any], network: WatchedNetwork, kind: str
) -> None:
    verdict = _probed(network.real if kind == "tiny" else networks[kind])
    assert (verdict.batching, verdict.reason) == ("together", None)
    assert verdict.probe_s is not None and verdict.probe_s > 0


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (_Mixing, "log-probabilities of rows of different lengths differ"),
        (_ForOneRow, r"rows together: ValueError: \[convert\] Only length-1 arrays"),
        (_ForOddNumbers, "log-probabilities of prompts that are prefilled together differ"),
        (_Meaningless, "differ from those alone by nan"),
    ],
)
def test_rows_that_differ_when_together_are_alone(
    network: WatchedNetwork, fault: type[_Faulty], reason: str
) -> None:
    verdict = _probed(fault(network.real), CacheLayout(network.real))
    assert verdict.batching == "alone"
    assert re.search(reason, verdict.reason or "")


def test_a_network_that_fails_alone_says_how(network: WatchedNetwork) -> None:
    with pytest.raises(TypeError, match="no such argument"):
        _probed(_Broken(network.real), CacheLayout(network.real))


@pytest.mark.parametrize(("most_tokens", "longest"), [(1024, WINDOW_TOKENS + 24), (30, 30)])
def test_a_row_is_longer_than_the_smallest_window_if_there_is_time(
    networks: dict[str, Any], most_tokens: int, longest: int
) -> None:
    watched = _Faulty(networks["sliding windows"])
    _probed(watched, most_tokens=most_tokens)
    assert max(width for rows, width in watched.shapes if rows == 1) == longest - 1


def test_rows_in_chunks_are_alone_and_nothing_is_tried(networks: dict[str, Any]) -> None:
    watched = _Faulty(networks["chunked attention"])
    layout = CacheLayout(watched.real)
    kept = BatchingVerdictStore(None)
    verdict = _result(find_verdict(watched, layout, VOCABULARY, 1024, _SPEED, kept, "a"))
    assert (verdict.batching, verdict.probe_s) == ("alone", None)
    assert watched.shapes == []


def test_only_what_is_unknown_is_probed(
    network: WatchedNetwork, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def verdict() -> BatchingVerdict:
        layout = CacheLayout(network.real)
        kept = BatchingVerdictStore(tmp_path / "kept.json")
        return _result(find_verdict(network.real, layout, VOCABULARY, 1024, _SPEED, kept, "a"))

    monkeypatch.setattr(batching_verdicts, "DATA", tmp_path / "verdicts.json")
    name = key("llama", ["KVCache"], version("mlx-lm"))
    for data, expected in (
        ({name: {"batching": "alone", "reason": "why"}}, BatchingVerdict("alone", "why")),
        ({name: {"batching": "together", "reason": None}}, BatchingVerdict("together")),
    ):
        batching_verdicts.DATA.write_text(json.dumps(data))
        assert verdict() == expected
    batching_verdicts.DATA.write_text(json.dumps({name.replace("mlx-lm ", "mlx-lm 9"): data[name]}))
    assert verdict().probe_s is not None
    assert verdict() == BatchingVerdict("together")  # as the probe found, which was kept


def test_a_definition_that_came_with_the_models_files_is_not_known(network: WatchedNetwork) -> None:
    class Model(llama.Model):  # type: ignore[misc]
        pass

    network.real.__class__, before = Model, type(network.real)
    try:
        assert known_verdict(network.real) is None
    finally:
        network.real.__class__ = before
