"""The judge is judged: what breaks a promise is seen, and what keeps them all is not."""

from typing import Any

import pytest

from tests.chaos.checker import (
    Strike,
    WireRecord,
    judge_order,
    judge_stream,
    judge_wire,
    stale_messages,
)
from tests.faults.answers import Answer, Piece, Record, recorded

TRUTH = Answer({0: [5, 6, 7]}, {0: "abc"}, {0: "length"})
FIRST, LAST = Piece(0, 0, [5, 6], "ab"), Piece(0, 2, [7], "c", "length")
CALM = Strike("nothing", (), 1000.0, 1001.0)


@pytest.mark.parametrize(
    ("record", "promises"),
    [
        (recorded(FIRST, LAST), []),
        (recorded(FIRST, end=None), ["end"]),
        (recorded(FIRST, LAST, end="worker_lost"), ["success"]),
        (recorded(FIRST, FIRST, LAST), ["tokens"]),
        (recorded(FIRST, Piece(0, 3, [7], "c", "length")), ["tokens"]),
        (recorded(FIRST, Piece(0, 2, [8], "c", "length")), ["answer"]),
        (recorded(FIRST, Piece(0, 2, [7], "d", "length")), ["answer"]),
        (recorded(FIRST, Piece(0, 2, [7], "c", "stop")), ["answer"]),
    ],
)
def test_what_the_client_library_gives(record: Record, promises: list[str]) -> None:
    assert [violation.promise for violation in judge_stream(record, TRUTH)] == promises


ENGINES = [Strike("kill an engine", ("w1",), 0.0, 1e9), Strike("stop an engine", ("w2",), 0.0, 1e9)]
POISON = "request_crashes_engine"


@pytest.mark.parametrize(
    ("end", "strikes", "promises"),
    [
        (POISON, ENGINES, []),
        (POISON, ENGINES[:1], ["success"]),
        (POISON, [], ["success"]),
        (POISON, [Strike("kill a worker", ("w1",), 0.0, 1e9), ENGINES[0]], ["success"]),
        (POISON, [ENGINES[0], Strike("stop an engine", ("w2",), 0.0, 1.0)], ["success"]),
        (POISON, [ENGINES[0], Strike("stop an engine", ("w2",), 1e8, 1e9)], ["success"]),
        ("worker_lost", ENGINES, ["success"]),
    ],
)
def test_for_a_poison_is_taken_only_what_two_engines_ended_beside(
    end: str, strikes: list[Strike], promises: list[str]
) -> None:
    stream = recorded(FIRST, end=end)
    assert [violation.promise for violation in judge_stream(stream, TRUTH, strikes)] == promises
    wire = heard(accepted(), done(error={"code": end}))
    wire.messages = [(1e7, message) for _, message in wire.messages]
    wire.started_at = 9e6
    assert judged(wire, *strikes) == promises


def accepted(attempt: int = 0) -> dict[str, Any]:
    return {"status": "accepted", "attempt": attempt, "worker": None}


def chunk(index: int, *ids: int, attempt: int = 0, worker: str = "w1") -> dict[str, Any]:
    return {
        "choice": 0, "index": index, "token_ids": list(ids), "attempt": attempt, "worker": worker
    }  # fmt: skip


def done(attempt: int = 0, worker: str = "w1", **fields: Any) -> dict[str, Any]:
    return {"done": True, "attempt": attempt, "worker": worker, **fields}


def heard(*messages: dict[str, Any], published: int = 1) -> WireRecord:
    told = [(10.0 + place, message) for place, message in enumerate(messages)]
    return WireRecord("one", "r", 10.0, published, list(told))


def judged(record: WireRecord, *strikes: Strike) -> list[str]:
    return [violation.promise for violation in judge_wire(record, TRUTH, strikes, 1.0)]


@pytest.mark.parametrize(
    ("record", "promises"),
    [
        (heard(accepted(), chunk(0, 5), chunk(1, 6, 7), done()), []),
        (heard(), []),
        (heard(done(error={"code": "queue_full"})), []),
        (heard(accepted(), chunk(0, 5)), ["end"]),
        (heard(accepted(), done(), done()), ["end"]),
        (heard(accepted(), done(), done(), published=2), []),
        (heard(accepted(), done(), chunk(0, 5)), ["end"]),
        (heard(accepted(), done(error={"code": "worker_lost"})), ["success"]),
        (heard(accepted(), chunk(0, 6), done()), ["answer"]),
        (heard(accepted(), chunk(0, 5), chunk(1, 6, worker="w2"), done(worker="w2")),
         ["attempt", "attempt"]),
        (heard(accepted(), chunk(0, 5), chunk(1, 6, attempt=1, worker="w2"), done(1, "w2")), []),
        (heard(accepted(), done(1, "w2"), done(0, "w1")), []),
    ],
)  # fmt: skip
def test_what_comes_on_the_wire(record: WireRecord, promises: list[str]) -> None:
    assert judged(record, CALM) == promises


def test_an_end_may_be_missing_where_messages_are_lost_or_two_things_happened_at_once() -> None:
    record = heard(accepted(), chunk(0, 5))
    one = Strike("kill a worker", ("w1",), 10.0, 12.0)
    assert judged(record, one) == ["end"]
    assert judged(record, one, one) == []
    lossy = Strike("kill a server", ("nats-1",), 10.0, 12.0, loses_messages=True)
    assert judged(record, lossy) == []


def test_of_one_request_only_the_first_few_are_told() -> None:
    wrong = [chunk(place, 99) for place in range(9)]
    assert judged(heard(accepted(), *wrong, done())) == ["answer"] * 3


def test_what_a_client_drops_is_counted() -> None:
    record = heard(
        accepted(), chunk(0, 5), chunk(0, 5, attempt=1, worker="w2"), chunk(1, 6),
        done(1, "w2"), done(0, "w1"),
    )  # fmt: skip
    assert stale_messages(record) == 2
    assert stale_messages(heard(accepted(), chunk(0, 5), done())) == 0


def test_turns_of_a_session_begin_once_the_one_before_has_ended() -> None:
    first, second = recorded(FIRST, LAST), recorded(FIRST, LAST)
    assert judge_order([first, second]) == []
    assert [violation.promise for violation in judge_order([second, first])] == ["order"]
    assert judge_order([second, recorded(end=None)]) == []


def test_an_end_that_was_said_again_may_come_after_the_next_turn_began() -> None:
    first, second = recorded(FIRST, LAST), recorded(FIRST, LAST)
    began, ended = second.started_at, second.ended_at
    for at, until, promises in ((began, ended, []), (ended + 1, ended + 2, ["order"])):
        for loses in (True, False):
            strike = Strike("kill a server", ("nats-1",), at, until, loses_messages=loses)
            found = [each.promise for each in judge_order([second, first], [strike])]
            assert found == (promises if loses else ["order"])
