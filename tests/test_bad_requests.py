"""Bad requests on a running cluster: a clear error, one end each, and nobody else notices."""

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from shared.errors import is_retryable
from shared.messages.request import InferenceRequest
from tests import bad_requests
from tests.asking import Answer, Asker, ended
from tests.bad_requests import BadRequest
from tests.processes import ClusterProcess
from tests.worker.running_agent import ENDLESS

SECURED = False  # else a server keeps some of this from controllers

_CHANGED = [*bad_requests.BAD_FIELDS, *bad_requests.FOUND_LATER]
_WHOLE, _MULTIPLEXED = "without streaming", "multiplexed"
_ROWS: dict[str, list[BadRequest]] = {
    "unreadable": bad_requests.UNREADABLE,
    "beyond the bounds": bad_requests.BEYOND_BOUNDS,
    "keys twice": bad_requests.DUPLICATES,
    "bad names": bad_requests.BAD_NAMES,
    "bad fields": bad_requests.BAD_FIELDS,
    "found by a worker": bad_requests.FOUND_LATER,
    "refused by nobody yet": bad_requests.TAKEN_TODAY,
    "with an id": bad_requests.NAMED,
    "wrong types": list(bad_requests.of_wrong_types()),
    _WHOLE: [row.but("whole", stream=False) for row in _CHANGED],
    _MULTIPLEXED: [row.but("multiplexed", multiplex=True) for row in _CHANGED],
}
_LEFT_FOR_LAST = {"resume.text_sent huge"}
_GOOD: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "What is the capital of France?"}], "seed": 1},
    {"prompt": "Once upon a time", "temperature": 0.8, "seed": 5},
    {"prompt": [5, 6, 7], "n": 2, "seed": 9, "stream": False},
    {"prompt": "One two three", "multiplex": True, "temperature": 0},
]


@dataclass(frozen=True, slots=True, repr=False)
class Outcome:
    """What became of all bad requests, and of the good ones beside and behind them."""

    answers: dict[str, Answer]
    expected: list[list[int]]
    meanwhile: list[list[list[int]]]
    afterwards: list[list[int]]
    processes: tuple[set[int], set[int]]
    reports: list[dict[str, Any]]
    logs: list[dict[str, Any]]


@pytest.fixture(scope="module")
def outcome(tiny_cluster: ClusterProcess) -> Outcome:
    return asyncio.run(_ask_all(tiny_cluster))


async def _ask_all(cluster: ClusterProcess) -> Outcome:
    async with Asker.connect(cluster) as asker:
        return await _ask_all_on(asker, cluster)


async def _ask_all_on(asker: Asker, cluster: ClusterProcess) -> Outcome:
    begun = datetime.now(UTC).isoformat()
    processes = {process.pid for process in cluster.processes()}
    expected = await _good_answers(asker)
    meanwhile: list[list[list[int]]] = []
    answers: dict[str, Answer] = {}

    async def ask_good_ones() -> None:
        while len(answers) < len(rows) - len(last) or not meanwhile:
            meanwhile.append(await _good_answers(asker))

    rows = [row for kind in _ROWS.values() for row in kind]
    last = [row for row in rows if row.name in _LEFT_FOR_LAST]
    beside = asyncio.create_task(ask_good_ones())
    for row in rows:
        if row not in last:
            answers[row.name] = await asker.ask(row.payload, row.subject)
    await ended(answers.values())
    await beside
    for row in last:
        answers[row.name] = await asker.ask(row.payload, row.subject)
        await ended([answers[row.name]])
    afterwards = await _good_answers(asker)
    await asker.settle()
    reports, logs = await asker.reports(), await asker.logs_since(begun)
    remaining = {process.pid for process in cluster.processes()}
    return Outcome(answers, expected, meanwhile, afterwards, (processes, remaining), reports, logs)


async def _good_answers(asker: Asker) -> list[list[int]]:
    common = {"max_tokens": 40, "logit_bias": ENDLESS}
    answers = await asker.answers(json.dumps({**common, **body}).encode() for body in _GOOD)
    assert all("error" not in answer.ends[0] for answer in answers)
    return [answer.token_ids for answer in answers]


def _problem(row: BadRequest, answer: Answer) -> str | None:
    """What is not as it should be: the right error in the last message and in no other, and
    nothing else but statuses."""
    if len(answer.ends) != 1 or answer.ends[0] is not answer.messages[-1]:
        return f"{len(answer.ends)} ends among {len(answer.messages)} messages"
    (end,) = answer.ends
    if "error" not in end:
        return "it was answered"
    error = end["error"]
    if (error["code"], error.get("param")) != (row.code, row.param):
        return f"{error} is not {row.code} at {row.param}"
    if row.words not in error["message"]:
        return f"{row.words!r} is not in {error['message']!r}"
    if error["retryable"] is not is_retryable(row.code):
        return f"retryable is {error['retryable']}"
    if not row.accepted and (len(answer.messages), end["worker"], end["attempt"]) != (1, None, 0):
        return f"a worker had it: {answer.messages}"
    return None


def test_every_field_of_a_request_has_its_wrong_values() -> None:
    fields = {row.name.split(" ")[0].split(".")[0] for row in bad_requests.of_wrong_types()}
    assert fields == set(InferenceRequest.model_fields)


@pytest.mark.parametrize("kind", _ROWS)
def test_bad_requests_get_one_error_each_that_says_what_is_wrong_where(
    kind: str, outcome: Outcome
) -> None:
    problems = {
        row.name: problem
        for row in _ROWS[kind]
        if (problem := _problem(row, outcome.answers[row.name]))
    }
    assert problems == {}


def test_the_error_names_the_request_by_the_id_it_gave_itself(outcome: Outcome) -> None:
    ends = [outcome.answers[row.name].ends[0] for row in bad_requests.NAMED]
    assert [end["request_id"] for end in ends] == ["mine"] * len(ends)


def test_without_streaming_the_error_is_the_only_message(outcome: Outcome) -> None:
    assert {len(outcome.answers[row.name].arrived) for row in _ROWS[_WHOLE]} == {1}


def test_a_multiplexed_request_gets_its_error_multiplexed(outcome: Outcome) -> None:
    for row in _ROWS[_MULTIPLEXED]:
        arrived = outcome.answers[row.name].arrived
        assert all(list(message) == ["messages"] for message in arrived)


def test_good_requests_beside_and_behind_the_bad_ones_get_their_answers(outcome: Outcome) -> None:
    assert all(len(token_ids) == 40 for token_ids in outcome.expected[:2])
    assert outcome.meanwhile
    for answers in [*outcome.meanwhile, outcome.afterwards]:
        assert answers == outcome.expected


def test_no_process_ended_and_no_request_is_left(outcome: Outcome) -> None:
    assert [log["message"] for log in outcome.logs if " ended: " in log["message"]] == []
    before, after = outcome.processes
    assert before == after
    assert {report["state"] for report in outcome.reports} == {"ready"}
    assert sum(report["active_requests"] for report in outcome.reports) == 0
    assert sum(report.get("queued_requests", 0) for report in outcome.reports) == 0


def test_no_process_was_surprised(outcome: Outcome) -> None:
    surprises = [log["message"] for log in outcome.logs if "Traceback" in log["message"]]
    assert outcome.logs and surprises == []
