"""Small models of every kind through the engine, beside what mlx-lm says alone.

`make test` judges one of each kind of cache, those that were wrong once, and quantised ones; `make
test-all` all there are, each in a process of its own.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.architectures.configurations import all_configurations, modules_without
from tests.architectures.judgement import Judgement, judge_configuration
from tests.architectures.processes import judge_all
from tests.ties import leave_out

_CONFIGURATIONS = all_configurations()
_KINDS = {
    "plain": "llama",
    "rotating": "gemma3_text",
    "chunked": "llama4",
    "recurrent": "mamba2",
    "hybrid": "qwen3_next",
    "pairs": "falcon_h1",
    "MLA": "deepseek_v3",
    "indexed": "deepseek_v32",
    "sinks": "gpt_oss",
    "4-bit": "llama (4-bit)",
    "bfloat16": "llama (bfloat16)",
}
_LIMIT_S = 250.0
_ONCE_WRONG = ["gemma2", "afm7", "gpt_bigcode", "minimax_m3_vl", "nemotron-nas", "deepseek_v41"]
_UNSTEADY = "plamo3"
_ANSWERS = 20
"""Five prompts in three phases, and each longer once."""
_OF_SHORTEST = 6
"""Two prompts in three phases."""


def _judge(name: str, folder: Path) -> Judgement:
    judgement = judge_configuration(_CONFIGURATIONS[name], folder / "model")
    if judgement.ties or judgement.left_out:
        leave_out(f"{name}: {judgement.left_out} answers, and what follows {judgement.ties} ties")
    return judgement


def _assert_compared(judgement: Judgement) -> None:
    """Of all answers it is known how they fared, and the shortest prompts are always compared: they
    come in one part, too short for much to choose from."""
    assert judgement.answers + judgement.left_out >= _ANSWERS
    assert judgement.answers >= _OF_SHORTEST


@pytest.mark.parametrize("kind", _KINDS)
def test_each_kind_of_cache_gets_what_mlx_lm_says_alone(kind: str, tmp_path: Path) -> None:
    judgement = _judge(_KINDS[kind], tmp_path)
    expected = "alone" if kind == "chunked" else "batched"
    assert judgement.outcome == expected, judgement.reason
    _assert_compared(judgement)


@pytest.mark.parametrize("name", _ONCE_WRONG)
def test_what_was_wrong_or_refused_gets_what_mlx_lm_says_alone(name: str, tmp_path: Path) -> None:
    judgement = _judge(name, tmp_path)
    assert judgement.outcome in ("batched", "alone"), judgement.reason
    _assert_compared(judgement)


def test_what_mlx_lm_says_otherwise_in_parts_is_compared_as_far_as_it_does_not(
    tmp_path: Path,
) -> None:
    """Its windows see a token more within a pass than from the cache."""
    judgement = _judge(_UNSTEADY, tmp_path)
    assert judgement.outcome == "batched"
    assert judgement.reason.startswith("mlx-lm itself says otherwise of 40 tokens and more")
    assert judgement.left_out > 0
    _assert_compared(judgement)


def test_every_module_of_mlx_lm_has_a_configuration() -> None:
    assert modules_without(_CONFIGURATIONS.values()) == []


def test_a_process_that_ends_is_a_line_of_the_table() -> None:
    """Its embedding is read beyond its end on a CPU, by tokens that this module has built in."""
    if os.uname().sysname == "Darwin":
        pytest.skip("it runs on a Mac")
    known = _CONFIGURATIONS["phi3small"]
    small = replace(known, config={**known.config, "vocab_size": 258})
    (judgement,) = judge_all([small], jobs=1, limit_s=_LIMIT_S)
    assert judgement.outcome == "refused"
    assert "its process ended" in judgement.reason


def test_one_that_takes_too_long_is_a_line_of_the_table() -> None:
    (judgement,) = judge_all([_CONFIGURATIONS["llama"]], jobs=1, limit_s=0.1)
    assert (judgement.outcome, judgement.name) == ("refused", "llama")
    assert "not done after" in judgement.reason


@pytest.mark.long_form
@pytest.mark.timeout(3600)
def test_every_configuration_gets_what_mlx_lm_says_alone_or_is_refused_by_it() -> None:
    judgements = list(judge_all(list(_CONFIGURATIONS.values()), jobs=2, limit_s=_LIMIT_S))
    assert {each.name: each.reason for each in judgements if each.outcome == "wrong"} == {}
    refused = {each.name: each.reason for each in judgements if each.outcome == "refused"}
    not_by_mlx_lm = {
        name: reason
        for name, reason in refused.items()
        if not reason.startswith("mlx-lm itself fails: ")
    }
    assert not_by_mlx_lm == {}
