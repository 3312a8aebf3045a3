"""The leader's requests, and workers' sessions, as rows."""

from typing import Any

from controller.gateway.live.request_rows import RequestRates, request_rows, session_rows
from controller.gateway.live.table import TableEvents
from shared.ids import ControllerId, WorkerId
from shared.messages.control import SessionStatus
from shared.messages.request_list import RequestActivity, RequestList, RequestSummary
from tests.controller.gateway.live.event_text import only

_HOSTILE = '"><script>alert(1)</script>\n\nevent: log'


def _summary(request_id: str = "r", **fields: Any) -> RequestSummary:
    values: dict[str, Any] = {
        "client": "ada", "request_id": request_id, "skill": "chat", "model": "qwen3-4b",
        "state": "running", "worker": "mac", "attempt": 2,
    }  # fmt: skip
    return RequestSummary.model_validate({**values, **fields})


def _activity(request_id: str = "r", **fields: Any) -> RequestActivity:
    values: dict[str, Any] = {
        "client": "ada", "request_id": request_id, "attempt": 2, "model": "qwen3-4b",
        "status": "running",
    }  # fmt: skip
    return RequestActivity.model_validate({**values, **fields})


def _rows(
    *requests: RequestSummary, activities: tuple[RequestActivity, ...] = ()
) -> dict[str, Any]:
    rates = RequestRates()
    rates.record(requests, 0.0)
    listed = RequestList(controller=ControllerId("c-1"), requests=list(requests))
    known = {(each.client, each.request_id): each for each in activities}
    return request_rows(listed, known, rates)


def test_a_request_has_every_field_of_the_contract() -> None:
    summary = _summary(
        priority="high", migrations=1, failed_workers=["mini"], tokens=40, elapsed_ms=1234.5,
        session_id="s", reason=None,
    )  # fmt: skip
    activity = _activity(status="prefill", progress=0.5, tokens=42)
    assert _rows(summary, activities=(activity,)) == {
        "ada/r": {
            "client": "ada", "id": "r", "skill": "chat", "model": "qwen3-4b", "priority": "high",
            "state": "running", "status": "prefill", "progress": 0.5, "reason": None,
            "worker": "mac", "attempt": 2, "migrations": 1, "moved_from": "mini", "tokens": 42,
            "tokens_per_s": 0.0, "elapsed_ms": 1234, "session_id": "s",
        }
    }  # fmt: skip


def test_what_the_worker_says_of_an_earlier_attempt_does_not_count() -> None:
    old = _activity(attempt=1, status="prefill", progress=0.5, tokens=99)
    row = _rows(_summary(tokens=3), activities=(old,))["ada/r"]
    assert (row["status"], row["progress"], row["tokens"]) == (None, None, 3)


def test_a_request_that_no_worker_has_says_why() -> None:
    row = _rows(_summary(state="queued", worker=None, reason="every worker is full"))["ada/r"]
    assert (row["worker"], row["reason"], row["status"]) == (None, "every worker is full", None)


def test_a_request_moved_only_if_it_had_begun_to_answer() -> None:
    def moved(**fields: Any) -> object:
        return _rows(_summary(**fields))["ada/r"]["moved_from"]

    assert moved(failed_workers=["mini"]) is None
    assert moved(failed_workers=["mini"], migrations=1) == "mini"
    assert moved(failed_workers=["a", "mini"], migrations=2) == "a, mini"
    assert moved(migrations=1) is None, "a leader that took over does not know from where"


def test_requests_of_two_clients_with_one_id_are_two_rows() -> None:
    assert list(_rows(_summary(), _summary(client="bob"))) == ["ada/r", "bob/r"]


def test_rates_are_tokens_by_time_smoothed_and_never_negative() -> None:
    rates = RequestRates()

    def rate(now: float, tokens: int) -> float:
        request = _summary(tokens=tokens)
        rates.record([request], now)
        return rates.of(request)

    assert rate(0.0, 100) == 0.0, "of the first sample nothing is known"
    assert rate(2.0, 200) == 50.0
    assert rate(4.0, 220) == 30.0
    assert rate(4.0, 220) == 30.0, "no time has passed"
    assert rate(6.0, 0) == 15.0, "it began anew"
    rates.record([], 7.0)
    assert rate(8.0, 500) == 0.0, "forgotten meanwhile"


def test_hostile_texts_of_requests_pass_through_unchanged() -> None:
    events = TableEvents("requests")
    fields = {"model": _HOSTILE, "session_id": _HOSTILE, "reason": _HOSTILE, "skill": _HOSTILE}
    events.update(_rows(_summary(request_id=_HOSTILE, **fields)))
    (row,) = only(events.since(0))["rows"]
    assert row["key"] == f"ada/{_HOSTILE}"
    assert {row[name] for name in ("id", "model", "session_id", "reason", "skill")} == {_HOSTILE}


def test_sessions_have_every_field_of_the_contract_the_last_used_first() -> None:
    def session(name: str, **fields: Any) -> SessionStatus:
        return SessionStatus.model_validate(
            {"client": "ada", "id": name, "model": "qwen3-4b", **fields}
        )

    first = session(
        "old", idle_s=63.9, turns=2, tokens=512, text_tokens=600, pinned=True,
        memory_bytes=10, disk_bytes=5, active=False, continuable=True,
    )  # fmt: skip
    rows = session_rows({WorkerId("mac"): [first], WorkerId("mini"): [session("new", idle_s=1.0)]})
    assert list(rows) == ["mini/ada/new", "mac/ada/old"]
    assert rows["mac/ada/old"] == {
        "client": "ada", "session_id": "old", "worker": "mac", "model": "qwen3-4b", "turns": 2,
        "active": False, "continuable": True, "pinned": True, "cached_tokens": 512, "tokens": 600,
        "bytes": 15, "idle_s": 60,
    }  # fmt: skip
