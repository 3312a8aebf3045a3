"""The judge is judged: what breaks a promise is seen, and what keeps them all is not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults.evidence import Evidence, Injection, Observation
from tests.faults.footprint import Footprint
from tests.faults.judge import (
    excerpt,
    judge_leaks,
    judge_order,
    judge_stream,
    judge_wire,
    judged,
    stale_messages,
)
from tests.faults.records import Answer, Piece, Record, WireRecord, first_difference, recorded

TRUTH = Answer({0: [5, 6, 7]}, {0: "abc"}, {0: "length"})
FIRST, LAST = Piece(0, 0, [5, 6], "ab"), Piece(0, 2, [7], "c", "length")
CALM = Injection("nothing", (), 1000.0, 1001.0)


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


ENGINES = [
    Injection("kill an engine", ("w1",), 0.0, 1e9),
    Injection("stop an engine", ("w2",), 0.0, 1e9),
]
POISON = "request_crashes_engine"


@pytest.mark.parametrize(
    ("end", "injections", "promises"),
    [
        (POISON, ENGINES, []),
        (POISON, ENGINES[:1], ["success"]),
        (POISON, [], ["success"]),
        (POISON, [Injection("kill a worker", ("w1",), 0.0, 1e9), ENGINES[0]], ["success"]),
        (POISON, [ENGINES[0], Injection("stop an engine", ("w2",), 0.0, 1.0)], ["success"]),
        (POISON, [ENGINES[0], Injection("stop an engine", ("w2",), 1e8, 1e9)], ["success"]),
        ("worker_lost", ENGINES, ["success"]),
    ],
)
def test_for_a_poison_is_taken_only_what_two_engines_ended_beside(
    end: str, injections: list[Injection], promises: list[str]
) -> None:
    stream = recorded(FIRST, end=end)
    assert [violation.promise for violation in judge_stream(stream, TRUTH, injections)] == promises
    wire = heard(accepted(), done(error={"code": end}))
    wire.messages = [(1e7, message) for _, message in wire.messages]
    wire.started_at = 9e6
    assert promises_broken(wire, *injections) == promises


LOSSES = [
    Injection(kind, ("w1",), at, at + 1.0)
    for at, kind in [
        (1.0, "kill a worker"), (3.0, "a worker sleeps"), (5.0, "stop an engine"),
        (7.0, "a worker is cut off"), (8.0, "a worker leaves"),
    ]
]  # fmt: skip


@pytest.mark.parametrize(
    ("begun_at", "injections", "promises"),
    [
        (None, LOSSES[:3], []),
        (None, LOSSES[1:3], ["success"]),
        (None, [*LOSSES[2:], LOSSES[3]], []),
        (0.5, LOSSES[:4], []),
        (2.5, LOSSES[:4], ["success"]),
        (0.5, [*LOSSES[:3], LOSSES[4]], ["success"]),
    ],
)
@pytest.mark.parametrize("end", ["worker_lost", "engine_crashed"])
def test_for_lost_is_taken_only_what_as_many_workers_were_lost_with_as_are_tried(
    begun_at: float | None, injections: list[Injection], promises: list[str], end: str
) -> None:
    stream = recorded(*([FIRST] if begun_at is not None else []), end=end)
    times = [0.0, 9.0] if begun_at is None else [0.0, begun_at, 9.0]
    stream.started_at, stream.heard_at = times[0], times[1:]
    assert [violation.promise for violation in judge_stream(stream, TRUTH, injections)] == promises
    wire = heard(accepted(), done(error={"code": end}))
    if begun_at is not None:
        wire = heard(accepted(), chunk(0, 5), done(error={"code": end}))
    wire.messages = [(at, each) for at, (_, each) in zip(times, wire.messages, strict=True)]
    wire.started_at = 0.0
    assert promises_broken(wire, *injections) == promises


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


def promises_broken(record: WireRecord, *injections: Injection) -> list[str]:
    return [violation.promise for violation in judge_wire(record, TRUTH, injections, 1.0)]


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
    assert promises_broken(record, CALM) == promises


def test_an_end_may_be_missing_where_messages_are_lost_or_two_things_happened_at_once() -> None:
    record = heard(accepted(), chunk(0, 5))
    one = Injection("kill a worker", ("w1",), 10.0, 12.0)
    assert promises_broken(record, one) == ["end"]
    assert promises_broken(record, one, one) == []
    lossy = Injection("kill a server", ("nats-1",), 10.0, 12.0, loses_messages=True)
    assert promises_broken(record, lossy) == []


def test_of_one_request_only_the_first_few_are_told() -> None:
    wrong = [chunk(place, 99) for place in range(9)]
    assert promises_broken(heard(accepted(), *wrong, done())) == ["answer"] * 3


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
            injection = Injection("kill a server", ("nats-1",), at, until, loses_messages=loses)
            found = [each.promise for each in judge_order([second, first], [injection])]
            assert found == (promises if loses else ["order"])


# What a record notes of its stream.


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ((FIRST, FIRST, LAST), "twice"),
        ((FIRST, Piece(0, 3, [8], "d", "length")), "missing"),
        ((LAST,), "missing"),
        ((FIRST, LAST, Piece(0, 3, [8], "d")), "after its finish_reason"),
        ((FIRST,), "before a finish_reason"),
        ((FIRST, LAST, Piece(1, 0, [8], "d")), "before a finish_reason"),
    ],
)
def test_what_breaks_a_rule_is_noted(pieces: tuple[Piece, ...], said: str) -> None:
    assert said in recorded(*pieces).broken[0]


def test_what_comes_after_the_end_is_noted() -> None:
    record = recorded(FIRST, LAST)
    record.take(Piece(1, 0, [8], "d"))
    record.finish("worker_lost")
    assert (len(record.broken), record.end) == (2, "done")


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1)],
)
def test_the_first_difference_of_two_answers_is_found(
    one: list[int], other: list[int], place: int | None
) -> None:
    assert first_difference(one, other) == place


# What is left, and evidence as a file.


HELD = Footprint(descriptors=20, threads=8, memory_bytes=10**8)
CALM_BEFORE = Observation({"w1": 0}, {"w1": 30}, {"w1": HELD})


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (CALM_BEFORE, []),
        (replace(CALM_BEFORE, requests={"w1": 2}), ["2 requests are left"]),
        (replace(CALM_BEFORE, tasks={"w1": 35}), []),
        (replace(CALM_BEFORE, tasks={"w1": 36}), ["asyncio tasks from 30 to 36"]),
        (replace(CALM_BEFORE, footprints={}), ["it is not there"]),
        (
            replace(CALM_BEFORE, footprints={"w1": Footprint(23, 11, 3 * 10**8)}),
            ["descriptors from 20 to 23", "threads from 8 to 11",
             "memory from 100000000 to 300000000"],
        ),
    ],
)  # fmt: skip
def test_what_is_left_behind_is_a_leak(after: Observation, said: list[str]) -> None:
    assert [violation.what for violation in judge_leaks(CALM_BEFORE, after)] == said


def test_evidence_is_judged_the_same_after_it_was_kept_as_a_file(tmp_path: Path) -> None:
    first, second = replace(recorded(FIRST, LAST), name="a"), replace(recorded(FIRST), name="b")
    evidence = Evidence(
        streams=[(first, TRUTH), (second, TRUTH)],
        wire=[(heard(accepted(), chunk(0, 6), done()), TRUTH)],
        sessions=[["b", "a"]],
        injections=[Injection("kill a worker", ("w1",), 10.0, 12.0)],
        problems=["not well within 5 s: worker-1"],
        before=CALM_BEFORE,
        after=replace(CALM_BEFORE, requests={"w1": 2}),
    )
    found = judged(evidence)
    assert {violation.promise for violation in found} == {
        "recovery", "end", "answer", "order", "leak"
    }  # fmt: skip
    evidence.save(tmp_path / "evidence.json.gz")
    assert judged(Evidence.load(tmp_path / "evidence.json.gz")) == found


def test_an_excerpt_breaks_the_same_promises_with_less_around_them() -> None:
    wrong = replace(recorded(FIRST, Piece(0, 2, [8], "c", "length")), name="wrong")
    right = [replace(recorded(FIRST, LAST), name=f"right {number}") for number in range(9)]
    streams = [(each, TRUTH) for each in (*right, wrong)]
    evidence = Evidence(streams, sessions=[["right 7", "wrong"]])
    found = judged(evidence)
    short = excerpt(evidence, found, most=2)
    assert judged(short) == found
    assert len(short.streams) == 3 + 1  # with the other turn of its session
