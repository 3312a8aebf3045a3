"""The feed behind all viewers: whom it asks, and only while somebody looks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from controller.gateway.health_poller import HealthPoller
from controller.gateway.live import feed as feed_module
from controller.gateway.live.feed import LiveFeed
from shared.bus import Bus, IncomingMessage
from shared.client import Cluster
from shared.codec import decode, encode
from shared.ids import LOCAL_CLIENT, ClientName, WorkerId
from shared.messages.control import ControlReply, ListRequests
from shared.messages.request_list import RequestSummary
from shared.messages.rollout import RolloutState
from tests.controller.gateway.live.event_text import TableCopy, only, parsed
from tests.controller.gateway.live.scripted_leader import ScriptedLeader
from tests.controller.gateway.live.test_cluster_rows import health
from tests.controller.values import report

pytestmark = pytest.mark.anyio
SECURED = False  # no server knows the name of a leader that a test plays

_ADA, _BOB = ClientName("ada"), ClientName("bob")
_WAIT_S = 20
_TICK_S = 0.02


class _Looking:
    """A feed that runs before a scripted leader."""

    def __init__(self, feed: LiveFeed, poller: HealthPoller, leader: ScriptedLeader) -> None:
        self.feed, self.poller, self.leader = feed, poller, leader

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(_WAIT_S):
            await self.feed.changed.wait_until(lambda: bool(condition()))

    def rows(self, view: str, client: ClientName | None = None) -> list[dict[str, Any]]:
        """All rows of a view, as a new viewer gets them."""
        body, _ = self.feed.since(view, 0, client)
        copy = TableCopy()
        if body:
            copy.apply(only(body))
        return list(copy.rows.values())


@pytest.fixture
async def looking(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[_Looking]:
    monkeypatch.setattr(feed_module, "TICK_S", _TICK_S)
    monkeypatch.setattr(feed_module, "_SESSIONS_EVERY_S", 0.0)
    monkeypatch.setattr(feed_module, "_ROLLOUT_EVERY_S", 0.0)
    leader = ScriptedLeader()
    served = await leader.serve(bus)
    cluster = Cluster(bus, LOCAL_CLIENT)
    poller = HealthPoller(cluster)
    feed = LiveFeed(cluster, poller)
    running = asyncio.create_task(feed.run())
    yield _Looking(feed, poller, leader)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    for subscription in served:
        await subscription.unsubscribe()


async def _answering(
    bus: Bus, verb: str, answer: Callable[[WorkerId], ControlReply | None]
) -> list[bytes]:
    """Workers that answer an order; those for which it returns None are silent. Returns the orders,
    as they come."""
    orders: list[bytes] = []

    async def on_order(message: IncomingMessage) -> None:
        orders.append(message.payload)
        if reply := answer(WorkerId(message.subject.split(".")[2])):
            await bus.publish(message.reply, encode(reply))

    await bus.subscribe(f"mlx.worker.*.control.{verb}", on_order)
    return orders


def _request(request_id: str, client: ClientName = _ADA, **fields: Any) -> RequestSummary:
    values: dict[str, Any] = {
        "client": client, "request_id": request_id, "skill": "chat", "model": "demo",
        "state": "running", "worker": "mac", "attempt": 1,
    }  # fmt: skip
    return RequestSummary.model_validate({**values, **fields})


def _rollout_state(phase: str) -> RolloutState:
    def rollout(version: int, phase: str) -> dict[str, Any]:
        return {
            "version": version, "before": version - 1, "phase": phase, "began_at": 1.0,
            "since": 1.0, "steps": [["mac"], ["mini"]], "by": "ada", "note": "n", "settings": {},
        }  # fmt: skip

    earlier = [rollout(number, "done") for number in range(30, 10, -1)]
    return RolloutState.model_validate({"rollout": rollout(3, phase), "history": earlier})


async def test_nobody_is_asked_while_nobody_looks(looking: _Looking) -> None:
    feed, leader = looking.feed, looking.leader
    await asyncio.sleep(10 * _TICK_S)
    assert leader.queries == []
    feed.watch(["requests", "overview"], None)
    assert feed.viewers == 1 and looking.poller.watched
    await looking.until(lambda: len(leader.queries) >= 3)
    feed.unwatch(["requests", "overview"], None)
    assert feed.viewers == 0 and not looking.poller.watched
    await asyncio.sleep(2 * _TICK_S)
    asked = len(leader.queries)
    await asyncio.sleep(10 * _TICK_S)
    assert len(leader.queries) == asked


async def test_viewers_of_one_client_share_their_questions(looking: _Looking) -> None:
    looking.leader.requests = [_request("a"), _request("b", _BOB)]
    for client in (_ADA, _ADA, None, None):
        looking.feed.watch(["requests"], client)
    await looking.until(lambda: len(looking.leader.queries) >= 6)
    asked = [query.client for query in looking.leader.queries]
    assert asked[:6] == [_ADA, None] * 3
    assert [row["id"] for row in looking.rows("requests", _ADA)] == ["a"]
    assert [row["id"] for row in looking.rows("requests")] == ["a", "b"]
    looking.feed.unwatch(["requests"], _ADA)
    looking.feed.unwatch(["requests"], None)
    assert looking.feed.since("requests", 0, _ADA)[0], "the other viewer is still there"


async def test_rows_tell_what_workers_say_and_come_without_those_that_say_nothing(
    looking: _Looking, bus: Bus
) -> None:
    activity = {
        "client": _ADA, "request_id": "a", "attempt": 1, "model": "demo", "status": "prefill",
        "progress": 0.5,
    }  # fmt: skip

    def answer(worker: WorkerId) -> ControlReply | None:
        if worker == "old":
            return ControlReply(worker=worker, ok=False, code="invalid_request", message="no verb")
        return ControlReply.model_validate({"worker": worker, "ok": True, "requests": [activity]})

    orders = await _answering(bus, "requests", answer)
    looking.leader.requests = [_request("a"), _request("b", worker="old"), _request("c", _BOB)]
    looking.feed.watch(["requests"], _ADA)
    await looking.until(lambda: looking.rows("requests", _ADA))
    told = {row["id"]: (row["status"], row["progress"]) for row in looking.rows("requests", _ADA)}
    assert told == {"a": ("prefill", 0.5), "b": (None, None)}
    assert {decode(ListRequests, order).client for order in orders} == {_ADA}


async def test_sessions_are_those_of_the_workers_that_answer(looking: _Looking, bus: Bus) -> None:
    sessions = [
        {"client": _ADA, "id": f"s{number}", "model": "demo", "idle_s": 10.0 * number}
        for number in range(3)
    ]

    def answer(worker: WorkerId) -> ControlReply | None:
        ok = worker == "mac"
        values = {"worker": worker, "ok": ok, "sessions": sessions if ok else []}
        return ControlReply.model_validate(values)

    await _answering(bus, "sessions", answer)
    looking.leader.health = lambda: health(report("mac"), report("mini"))
    await looking.poller.refresh()
    looking.feed.watch(["sessions"], None)
    await looking.until(lambda: looking.rows("sessions"))
    keys = [row["key"] for row in looking.rows("sessions")]
    assert keys == ["mac/ada/s0", "mac/ada/s1", "mac/ada/s2"]
    value = only(looking.feed.since("sessions", 0, None)[0])
    assert (value["total"], value["workers"]) == (3, 1)


async def test_a_roll_out_is_a_view_and_its_changes_are_logged(looking: _Looking) -> None:
    looking.leader.rollout = _rollout_state("measuring")
    looking.feed.watch(["rollout", "log"], None)
    await looking.until(lambda: looking.feed.rollout.version)
    shown = only(looking.feed.since("rollout", 0, None)[0])
    assert shown["rollout"] == {
        "version": 3, "before": 2, "phase": "measuring", "steps": [["mac"], ["mini"]], "step": 0,
        "paused": False, "began_at": 1.0, "since": 1.0, "by": "ada", "note": "n", "reason": None,
    }  # fmt: skip
    assert len(shown["history"]) == 10, "of more"
    assert shown["history"][0]["version"] == 30, "the newest first"
    assert shown["history"][0].keys() == shown["rollout"].keys()
    looking.leader.rollout = _rollout_state("applying")
    await looking.until(lambda: looking.feed.log.version)
    ((_, log),) = parsed(looking.feed.since("log", 0, None)[0])
    assert [record["text"] for record in log["records"]] == ["version 3 is applying"]


async def test_health_is_logged_also_while_nobody_looks_but_views_are_not_made(
    looking: _Looking,
) -> None:
    looking.leader.health = lambda: health(report("mac"))
    await looking.poller.refresh()
    looking.leader.health = health
    await looking.poller.refresh()
    ((_, log),) = parsed(looking.feed.since("log", 0, None)[0])
    assert log["records"][-1]["text"] == "mac is gone: it sends no heartbeats"
    for view in ("overview", "machines", "models"):
        assert looking.feed.since(view, 0, None) == (b"", 0)
    looking.feed.watch(["overview", "machines"], None)
    assert only(looking.feed.since("overview", 0, None)[0])["status"] == "degraded"
    assert only(looking.feed.since("machines", 0, None)[0])["rows"] == []
    assert looking.feed.since("models", 0, None) == (b"", 0)


async def test_a_view_that_fails_ends_neither_the_feed_nor_the_poller(
    looking: _Looking, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    looking.leader.requests = [_request("a")]
    with monkeypatch.context() as failing:
        failing.setattr(feed_module, "machine_rows", fail)
        failing.setattr(feed_module, "request_rows", fail)
        looking.poller.health = health(report("mac"))
        looking.feed.watch(["requests"], None)
        await looking.until(lambda: "a view of the cluster failed" in caplog.text)
        with contextlib.suppress(ZeroDivisionError):  # the viewer that asks gets an error
            looking.feed.watch(["machines"], None)
        await looking.poller.refresh()
        assert "a view of the cluster's health failed" in caplog.text
    await looking.poller.refresh()
    await looking.until(lambda: looking.rows("requests"))
    assert looking.feed.since("machines", 0, None)[0]


async def test_a_client_whose_workers_are_silent_delays_nobody_else(
    looking: _Looking, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its poll takes forever here."""
    monkeypatch.setattr(feed_module, "_REPLY_S", 3600.0)
    answered = asyncio.Event()

    def answer(worker: WorkerId) -> ControlReply | None:
        if worker == "silent":
            answered.set()
            return None
        return ControlReply(worker=worker, ok=True)

    await _answering(bus, "requests", answer)
    await _answering(bus, "sessions", answer)
    looking.leader.requests = [_request("a", worker="silent"), _request("b", _BOB, worker="mac")]
    looking.leader.rollout = _rollout_state("measuring")
    looking.feed.watch(["requests"], _ADA)
    await asyncio.wait_for(answered.wait(), _WAIT_S)
    looking.feed.watch(["requests", "rollout", "sessions"], _BOB)
    await looking.until(lambda: looking.rows("requests", _BOB))
    await looking.until(lambda: looking.feed.rollout.version)
    before = len(looking.leader.queries)
    await looking.until(lambda: len(looking.leader.queries) > before + 3)
    assert not looking.rows("requests", _ADA)
