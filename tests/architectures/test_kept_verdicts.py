"""Verdicts that come with the project are what was judged."""

from typing import Any

from tests.architectures.judgement import Judgement
from tests.architectures.kept_verdicts import verdicts_of
from worker.engine.batching_verdicts import BatchingVerdict, key


def _judged(name: str, outcome: Any, reason: str = "") -> Judgement:
    return Judgement(name, "llama", outcome, reason, ["KVCache"])


_KEY = key("llama", ["KVCache"], "1.0")


def test_what_is_batched_goes_together_and_what_is_not_says_why() -> None:
    assert verdicts_of([_judged("a", "batched", "note")], "1.0") == {
        _KEY: BatchingVerdict("together")
    }
    assert verdicts_of([_judged("a", "alone", "why")], "1.0") == {
        _KEY: BatchingVerdict("alone", "why")
    }


def test_of_two_models_with_one_key_the_one_that_is_alone_counts() -> None:
    both = [_judged("a", "batched"), _judged("b", "alone", "why")]
    for order in (both, both[::-1]):
        assert verdicts_of(order, "1.0") == {_KEY: BatchingVerdict("alone", "why")}


def test_of_what_was_wrong_or_refused_nothing_is_known() -> None:
    assert verdicts_of([_judged("a", "refused", "why")], "1.0") == {}
    for order in (("batched", "wrong"), ("wrong", "batched")):
        assert verdicts_of([_judged(each, each) for each in order], "1.0") == {}
