"""The store of sessions, by value: turns, orders to engines, limits, files."""

from pathlib import Path
from typing import Any

import pytest

from shared.errors import RequestError
from shared.ids import ClientName
from shared.messages.conversation import Message
from tests.worker.sessions.stores import new_store
from tests.worker.values import CLIENT, active
from tests.worker.virtual_time import Clock
from worker.link.facts import (
    CachedSequenceMeasurements,
    SequenceCached,
    SequenceOutput,
    ToolCallPiece,
)
from worker.link.orders import EvictCachedSequence, Order, TrackSequence
from worker.requests.active_request import ActiveRequest, call_id
from worker.sessions.store import SessionStore

USER = {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": "Hi!"}
KEY = (CLIENT, "s")


def begun(store: SessionStore, session: str = "s", **fields: Any) -> ActiveRequest:
    fields = {"messages": [USER], "prompt": None, **fields}
    request = active(session_id=session, **fields)
    request.admit(0)
    store.begin(request)
    return request


def turn(store: SessionStore, session: str = "s", *, end: str = "aa", **fields: Any) -> None:
    """A turn that was answered, and whose text is kept."""
    request = begun(store, session, **fields)
    request.advance(request.choices[0], SequenceOutput(1, 0, [5], "Hi!", "stop"))
    store.end(request, answered=True)
    store.on_sequence_cached(0, SequenceCached(1, end, 7), request)


def test_an_answer_that_went_on_with_a_message_is_one_with_it() -> None:
    store = new_store()
    begun_answer = {"role": "assistant", "content": "Oh, "}
    turn(store, messages=[USER, begun_answer], continue_final_message=True)
    assert store.messages(KEY) == [USER, {"role": "assistant", "content": "Oh, Hi!"}]


def measured(end: str, own_bytes: int) -> CachedSequenceMeasurements:
    return CachedSequenceMeasurements(end, 7, 7, own_bytes, 0, own_bytes)


def test_a_session_is_what_was_said_in_all_its_turns() -> None:
    store = new_store()
    turn(store)
    assert store.messages(KEY) == [USER, ANSWER]
    turn(store, messages=[USER, ANSWER, USER])
    assert store.messages(KEY) == [USER, ANSWER, USER, ANSWER]
    (status,) = store.listing()
    assert (status.client, status.id, status.turns, status.text_tokens) == (*KEY, 2, 7)
    assert status.continuable and not status.active


def test_turns_that_another_worker_answered_count() -> None:
    store = new_store()
    turn(store, messages=[USER, ANSWER, USER, ANSWER, USER])
    assert store.status(KEY).turns == 3


def test_calls_and_reasoning_belong_to_what_was_said(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    request = begun(store)
    choice = request.choices[0]
    head = SequenceOutput(1, 0, [5], "", reasoning="Hm.", calls=[ToolCallPiece(0, "", "now")])
    request.advance(choice, head)
    request.advance(
        choice, SequenceOutput(1, 1, [6], "", "tool_calls", calls=[ToolCallPiece(0, "{}")])
    )
    store.end(request, answered=True)
    call = {
        "id": call_id(request.key, 0, 0),
        "type": "function",
        "function": {"name": "now", "arguments": "{}"},
    }
    answer = {"role": "assistant", "content": "", "reasoning": "Hm.", "tool_calls": [call]}
    assert store.messages(KEY) == [USER, answer]
    assert Message.model_validate(answer).turn == answer, "a client may send it back"
    result = {"role": "tool", "content": "noon", "tool_call_id": call["id"]}
    turn(store, messages=[USER, answer, result])
    store.close()
    assert new_store(tmp_path).messages(KEY) == [USER, answer, result, ANSWER]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"history": "sent"}, []),
        ({"n": 2}, []),
        ({"resume": {"token_ids": [5], "text_sent": 1}}, None),
        ({"messages": None, "prompt": "Hello"}, []),
    ],
)
def test_where_not_all_is_known_nothing_is(fields: dict[str, Any], said: list[Any] | None) -> None:
    store = new_store()
    turn(store, **fields)
    assert store.messages(KEY) == said
    assert store.messages((CLIENT, "other")) is None


def test_sessions_that_nobody_named_keep_no_words() -> None:
    store = new_store()
    turn(store, "auto-0123")
    assert store.messages((CLIENT, "auto-0123")) == []
    assert [status.continuable for status in store.listing()] == [False]


def test_a_first_turn_that_failed_leaves_nothing_and_a_later_one_what_was() -> None:
    store = new_store()
    request = begun(store)
    assert store.listing()[0].active
    store.end(request, answered=False)
    assert store.listing() == []
    turn(store)
    store.end(begun(store, messages=[USER, ANSWER, USER]), answered=False)
    assert store.messages(KEY) == [USER, ANSWER]


def test_an_engine_follows_the_last_text_of_a_session() -> None:
    orders: list[tuple[int, Order]] = []
    store = new_store(orders=orders)
    turn(store, end="aa")
    assert orders == []
    turn(store, end="bb")
    assert orders == [], "a text that another one goes on from is followed, too"
    store.on_measured(0, [measured("aa", 5), measured("bb", 9)])
    assert store.status(KEY).own_bytes == 9
    store.on_engine_started(0)
    assert orders == [(0, TrackSequence("bb"))]
    assert store.status(KEY).own_bytes == 0, "a new engine has to say what it has"
    store.forget(KEY)
    assert orders[1:] == [(0, EvictCachedSequence("bb"))]
    with pytest.raises(RequestError) as error:
        store.forget(KEY)
    assert error.value.code == "unknown_session"


def test_two_sessions_may_have_the_same_text() -> None:
    orders: list[tuple[int, Order]] = []
    store = new_store(orders=orders)
    for session in ("s", "t"):
        turn(store, session, end="aa")
    store.on_measured(0, [measured("aa", 5)])
    assert [status.own_bytes for status in store.listing()] == [5, 5]
    store.pin(KEY, pinned=True)
    store.forget(KEY)
    assert orders == [(0, TrackSequence("aa", pinned=True)), (0, TrackSequence("aa", pinned=False))]
    assert store.status((CLIENT, "t")).own_bytes == 5
    store.forget((CLIENT, "t"))
    assert orders[2:] == [(0, EvictCachedSequence("aa"))]


def test_what_is_pinned_stays_pinned_over_turns_and_restarts(tmp_path: Path) -> None:
    orders: list[tuple[int, Order]] = []
    store = new_store(tmp_path, orders=orders)
    turn(store, end="aa")
    assert store.pin(KEY, pinned=True).pinned
    turn(store, end="bb")
    assert [order for _, order in orders] == [
        TrackSequence("aa", pinned=True),
        TrackSequence("aa", pinned=False),
        TrackSequence("bb", pinned=True),
    ]
    store.close()

    orders.clear()
    store = new_store(tmp_path, orders=orders)
    assert [(session.key, session.engine) for session in store.cached()] == [(KEY, 0)]
    store.on_engine_started(1)
    assert orders == [], "another engine has its text"
    store.on_engine_started(0)
    assert orders == [(0, TrackSequence("bb", pinned=True))]
    assert store.messages(KEY) == [USER, ANSWER]
    assert not store.pin(KEY, pinned=False).pinned


def test_at_most_half_of_what_is_kept_may_be_pinned() -> None:
    store = new_store(pin_limit_bytes=100)
    for session, end in (("s", "aa"), ("t", "bb")):
        turn(store, session, end=end)
        store.on_measured(0, [measured(end, 30)])
    store.pin(KEY, pinned=True)
    with pytest.raises(RequestError, match="60 bytes; at most 50") as error:
        store.pin((CLIENT, "t"), pinned=True)
    assert error.value.code == "session_quota"
    store.pin(KEY, pinned=True)


def test_sessions_go_when_nobody_used_them_for_long() -> None:
    clock = Clock()
    store = new_store(clock=clock, ttl_s=60)
    for session, end in (("old", "aa"), ("pinned", "bb"), ("new", "cc")):
        turn(store, session, end=end)
        clock.now += 30
    store.pin((CLIENT, "pinned"), pinned=True)
    clock.now += 1
    store.tick()
    assert [status.id for status in store.listing()] == ["new", "pinned"]
    assert [status.idle_s for status in store.listing()] == [31, 61]


def test_a_client_has_so_many_sessions_and_no_more() -> None:
    orders: list[tuple[int, Order]] = []
    store = new_store(orders=orders, max_per_client=2)
    for session, end in (("a", "aa"), ("b", "bb")):
        turn(store, session, end=end)
    turn(store, "a", end="aa")
    turn(store, "c", end="cc")
    assert [status.id for status in store.listing(CLIENT)] == ["c", "a"]
    assert orders == [], "others may still begin like it"
    assert store.listing("nobody") == []  # type: ignore[arg-type]


def test_a_client_may_have_so_many_bytes_and_no_more() -> None:
    orders: list[tuple[int, Order]] = []
    store = new_store(orders=orders, max_mb_per_client=1)
    for session, end in (("a", "aa"), ("b", "bb"), ("c", "cc")):
        turn(store, session, end=end)
        store.on_measured(0, [measured(end, 400_000)])
    assert [status.id for status in store.listing()] == ["c", "b"]
    assert orders == [(0, EvictCachedSequence("aa"))]
    store.on_measured(0, [measured("cc", 2_000_000)])
    assert [status.id for status in store.listing()] == ["c"], "the one in use stays"


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"client": 3}', b"\xff\xfe", b'{"nonsense": true}']
)
def test_a_file_that_is_no_session_is_deleted(tmp_path: Path, content: bytes) -> None:
    store = new_store(tmp_path)
    turn(store)
    store.close()
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    bad = tmp_path / ("0" * 32 + ".json")
    for data in (content, kept.read_bytes()):  # the second one is another session's
        bad.write_bytes(data)
        assert len(new_store(tmp_path)) == 1
        assert list(tmp_path.iterdir()) == [kept]
    store = new_store(tmp_path)
    store.forget(KEY)
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_without_a_usable_folder_sessions_live_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    store = new_store(tmp_path / "file" / "folder")
    turn(store)
    turn(store)
    store.close()
    assert store.messages(KEY) == [USER, ANSWER]
    assert caplog.text.count("do not survive a restart") == 1


def test_who_has_the_most_messages_loses_them_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.sessions.store._MAX_MESSAGE_BYTES", 20_000)
    store = new_store()
    ada, eve = ClientName("ada"), ClientName("eve")
    turn(store, "s", client=ada)
    for number in range(40):
        turn(store, f"s-{number}", client=eve, messages=[{**USER, "content": "x" * 1000}])
    kept = [number for number in range(40) if store.messages((eve, f"s-{number}"))]
    assert 10 < len(kept) < 20 and kept[-1] == 39
    assert kept == list(range(40 - len(kept), 40)), "the last ones"
    assert store.messages((ada, "s")) == [USER, ANSWER]
