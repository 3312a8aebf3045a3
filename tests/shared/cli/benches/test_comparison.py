"""The figures, by value."""

from dataclasses import replace

import orjson
import pytest

from shared.cli.benches.comparison import AnswerStatistics, BenchLoad, Spread
from tests.shared.cli.benches.values import LOAD, comparison


@pytest.mark.parametrize(
    ("turns", "restart", "after", "parts"),
    [
        (6, True, 3, [range(1, 4), range(4, 7)]),
        (5, True, 2, [range(1, 3), range(3, 6)]),
        (2, True, 1, [range(1, 2), range(2, 3)]),
        (6, False, None, [range(1, 7)]),
    ],
)
def test_the_restart_comes_after_half_of_the_turns(
    turns: int, restart: bool, after: int | None, parts: list[range]
) -> None:
    load: BenchLoad = replace(LOAD, turns=turns, restart=restart)
    assert load.restart_after == after
    assert load.parts == parts


def test_figures_are_sums_of_tokens_and_spreads_of_times() -> None:
    found = comparison()
    assert found.without_memory.turn(3) == AnswerStatistics(
        2600, 2600, Spread(1.5, 1.0, 2.0), Spread(3.0, 2.0, 4.0)
    )
    assert found.with_memory.turn(3).computed_tokens == 200
    assert found.without_memory.total.computed_tokens == 2 * (1100 + 1200 + 1300 + 1400)
    assert found.with_memory.total.prompt_tokens == found.without_memory.total.prompt_tokens


def test_differences_are_the_answers_that_are_not_alike() -> None:
    assert comparison().differences == []
    (difference,) = comparison(said={(2, 3): "else"}).differences
    assert (difference.agent, difference.turn) == (2, 3)
    assert (difference.with_kv_memory, difference.without_kv_memory) == ("else", "2.3")


def test_json_has_it_all() -> None:
    body = orjson.loads(orjson.dumps(comparison(said={(2, 3): "else"}).as_dict()))
    assert (body["answers"], body["equal_answers"], body["restart_after"]) == (8, 7, 2)
    assert body["load"]["agents"] == 2
    for name in ("with_kv_memory", "without_kv_memory"):
        assert [turn["turn"] for turn in body[name]["turns"]] == [1, 2, 3, 4]
        assert len(body[name]["answers"]) == 8
    assert body["without_kv_memory"]["turns"][2]["first_token_s"]["median"] == 1.5
