"""Bad messages on every subject but `mlx.infer`: answered where an answer is due, and survived."""

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from nats.aio.msg import Msg

from shared.messages.control import CONTROL_ORDERS
from tests.asking import LIMIT_S, Asker
from tests.processes import ClusterProcess
from tests.worker.running_agent import ENDLESS

SECURED = False  # else a server keeps most of this from everybody

_GARBAGE: dict[str, bytes] = {
    "nothing": b"",
    "bytes": b"\xff\x00\xfe garbage",
    "half an object": b'{"request_id": "x"',
    "a list": b"[]",
    "null": b"null",
    "deep": b"[" * 200_000,
    "duplicate keys": b'{"model": 1, "model": 2, "request_id": 5, "request_id": 6, "owner": 7, '
    b'"client": 8, "client": 9, "verb": "soon", "deadline_ms": "soon", "deadline_ms": "later"}',
    "wrong types": json.dumps(
        {
            **dict.fromkeys(["request_id", "model", "owner", "client", "deadline_ms"], (None, 5)),
            **dict.fromkeys(["type", "verb", "worker", "controller", "events", "dispatches"], 5),
            **dict.fromkeys(["reply", "inbox", "inboxes", "attempt", "request", "limit"], ()),
        }
    ).encode(),
}
_HUGE = b'"%s"' % (b"x" * 7_900_000)

_ORDERS = [*CONTROL_ORDERS, "dance"]
_CONTROL = [f"mlx.worker.worker-1.control.{verb}" for verb in _ORDERS]
_QUERIES = [f"mlx.request.local.{verb}" for verb in ("cancel", "status")]
_LIST = "mlx.requests.list"
_RESEND = "mlx.stream.worker-1.local.resend"
_HEALTH = [
    "mlx.health.cluster",
    "mlx.health.controller",
    "mlx.health.controller.controller-1",
    "mlx.health.worker.worker-1",
]
_UNANSWERED = [
    "mlx.worker.worker-1.infer",
    "mlx.event.worker.worker-1",
    "mlx.event.worker.stranger",
    "mlx.event.kept.worker-1",
    "mlx.event.controller.controller-1",
    "mlx.event.request.controller-1.worker-1",
    "mlx.controller.controller-1.transfer",
    "mlx.logs.recent",
    "mlx.log.worker.worker-1",
    "mlx.request.local.dance",
    "mlx.request.lo$al.cancel",
    "mlx.stream.worker-1.lo$al.resend",
]
_GOOD = json.dumps({"prompt": "Once", "max_tokens": 40, "seed": 3, "logit_bias": ENDLESS}).encode()


@dataclass(frozen=True, slots=True, repr=False)
class Outcome:
    """The answers to all bad messages, and how good requests went beside and behind them."""

    answers: dict[tuple[str, str], list[Msg]]
    expected: list[int]
    meanwhile: list[list[int]]
    afterwards: list[int]
    processes: tuple[set[int], set[int]]
    reports: list[dict[str, Any]]
    logs: list[dict[str, Any]]

    def body(self, subject: str, payload: str) -> dict[str, Any]:
        """The one answer."""
        (answer,) = self.answers[subject, payload]
        assert answer.headers is None, "nobody is there"
        body: dict[str, Any] = json.loads(answer.data)
        return body


@pytest.fixture(scope="module")
def outcome(tiny_cluster: ClusterProcess) -> Outcome:
    return asyncio.run(_send_all(tiny_cluster))


async def _send_all(cluster: ClusterProcess) -> Outcome:
    async with Asker.connect(cluster) as asker:
        return await _send_all_on(asker, cluster)


async def _send_all_on(asker: Asker, cluster: ClusterProcess) -> Outcome:
    begun = datetime.now(UTC).isoformat()
    processes = {process.pid for process in cluster.processes()}
    (expected,) = await asker.answers([_GOOD])
    beside = [await asker.ask(_GOOD) for _ in range(4)]
    answers: dict[tuple[str, str], list[Msg]] = {}
    for subject in [*_CONTROL, *_QUERIES, _LIST, _RESEND, *_HEALTH, *_UNANSWERED]:
        for name, payload in _GARBAGE.items():
            answers[subject, name] = await _send(asker, subject, payload)
        answers[subject, "huge"] = await _send(asker, subject, _HUGE)
        await asker.settle()  # not more at once than the server keeps for a slow consumer
    for answer in beside:
        await asyncio.wait_for(answer.ended.wait(), LIMIT_S)
    (afterwards,) = await asker.answers([_GOOD])
    await asker.until_idle()
    reports, logs = await asker.reports(), await asker.logs_since(begun)
    return Outcome(
        answers,
        expected.token_ids,
        [answer.token_ids for answer in beside],
        afterwards.token_ids,
        (processes, {process.pid for process in cluster.processes()}),
        reports,
        logs,
    )


async def _send(asker: Asker, subject: str, payload: bytes) -> list[Msg]:
    """Publish, with an inbox and without; the list fills as answers come."""
    got: list[Msg] = []

    async def take(msg: Msg) -> None:
        got.append(msg)

    inbox = asker.client.new_inbox()
    await asker.client.subscribe(inbox, cb=take)
    await asker.client.publish(subject, payload, reply=inbox)
    if payload is not _HUGE and subject != "mlx.logs.recent":
        await asker.client.publish(subject, payload)
    return got


_PAYLOADS = [*_GARBAGE, "huge"]


@pytest.mark.parametrize("subject", _CONTROL)
def test_bad_orders_to_a_worker_are_refused_with_their_fault(
    subject: str, outcome: Outcome
) -> None:
    kind = CONTROL_ORDERS.get(subject.rsplit(".", 1)[1])
    said = f"not a {kind.__name__}: " if kind else "no control verb 'dance'"
    for payload in _PAYLOADS:
        reply = outcome.body(subject, payload)
        told = reply["worker"], reply["ok"], reply["code"]
        assert told == ("worker-1", False, "invalid_request"), payload
        assert reply["message"].startswith(said), payload


@pytest.mark.parametrize("subject", _QUERIES)
def test_bad_queries_are_answered_with_what_is_wrong(subject: str, outcome: Outcome) -> None:
    for payload in _PAYLOADS:
        state = outcome.body(subject, payload)
        assert (state["state"], state["controller"]) == ("unknown", "controller-1"), payload
        assert state["message"], payload


def test_bad_queries_for_the_list_of_requests_are_answered_with_what_is_wrong(
    outcome: Outcome,
) -> None:
    for payload in _PAYLOADS:
        listed = outcome.body(_LIST, payload)
        assert listed["controller"] == "controller-1" and listed["message"], payload
        assert listed["requests"] == []


def test_bad_questions_for_chunks_are_answered_with_what_is_wrong(outcome: Outcome) -> None:
    for payload in _PAYLOADS:
        state = outcome.body(_RESEND, payload)
        assert state["state"] == "unknown" and state["message"], payload


@pytest.mark.parametrize("subject", _HEALTH)
def test_health_is_told_whatever_the_question_holds(subject: str, outcome: Outcome) -> None:
    for payload in _PAYLOADS:
        health = outcome.body(subject, payload)
        assert health.get("status", "ready") == "ready", payload
        assert health.get("live", True) and health.get("ready", True), payload


def test_what_cannot_be_read_leaves_no_trace_in_the_registry(outcome: Outcome) -> None:
    health = outcome.body("mlx.health.cluster", "huge")
    assert [worker["id"] for worker in health["workers"]] == ["worker-1", "worker-2"]
    assert [controller["id"] for controller in health["controllers"]] == ["controller-1"]


def test_good_requests_beside_and_behind_get_their_answers(outcome: Outcome) -> None:
    assert len(outcome.expected) == 40
    assert outcome.meanwhile == [outcome.expected] * 4
    assert outcome.afterwards == outcome.expected


def test_no_process_ended_or_drains(outcome: Outcome) -> None:
    """That none keeps a request is waited for before."""
    before, after = outcome.processes
    assert before == after
    assert {report["state"] for report in outcome.reports} == {"ready"}


def test_what_cannot_be_read_is_logged_once_and_surprises_nobody(outcome: Outcome) -> None:
    messages = [log["message"] for log in outcome.logs]
    assert not [message for message in messages if "Traceback" in message]
    for subject in (
        "mlx.worker.worker-1.infer",
        "mlx.event.worker.stranger",
        "mlx.event.kept.worker-1",
        "mlx.event.request.controller-1.worker-1",
        "mlx.controller.controller-1.transfer",
    ):
        words = f"messages on {subject} are refused: "
        assert len([message for message in messages if message.startswith(words)]) == 1


def test_a_question_without_an_inbox_surprises_nobody(tiny_cluster: ClusterProcess) -> None:
    asyncio.run(_ask_without_inbox(tiny_cluster))


async def _ask_without_inbox(cluster: ClusterProcess) -> None:
    begun = datetime.now(UTC).isoformat()
    async with Asker.connect(cluster) as asker:
        worker, *_ = await asker.reports()
        for subject in ("mlx.logs.recent", f"mlx.worker.{worker['id']}.{worker['boot_id']}.alive"):
            await asker.client.publish(subject, b"")
        await asker.settle()
        logs = await asker.logs_since(begun)
    assert not [log["message"] for log in logs if "Traceback" in log["message"]]
