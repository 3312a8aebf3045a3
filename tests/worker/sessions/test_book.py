"""The book of sessions, by value: turns, orders to engines, limits, files."""

from pathlib import Path
from typing import Any

import pytest

from shared.errors import RequestError
from shared.messages.request import Message
from tests.worker.sessions.books import new_book
from tests.worker.values import CLIENT, active
from tests.worker.virtual_time import Clock
from worker.link.facts import CallPiece, Output, SequenceCached, SequenceMeasured
from worker.link.orders import DropSequence, Order, TrackSequence
from worker.requests.active_request import ActiveRequest, call_id
from worker.sessions.book import SessionStore

USER = {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": "Hi!"}
KEY = (CLIENT, "s")


def begun(book: SessionStore, session: str = "s", **fields: Any) -> ActiveRequest:
    fields = {"messages": [USER], "prompt": None, **fields}
    request = active(session_id=session, **fields)
    request.admit(0)
    book.begin(request)
    return request


def turn(book: SessionStore, session: str = "s", *, end: str = "aa", **fields: Any) -> None:
    """A turn that was answered, and whose text is kept."""
    request = begun(book, session, **fields)
    request.advance(request.choices[0], Output(1, 0, [5], "Hi!", "stop"))
    book.end(request, answered=True)
    book.on_text_kept(0, SequenceCached(1, end, 7), request)


def test_an_answer_that_went_on_with_a_message_is_one_with_it() -> None:
    book = new_book()
    begun_answer = {"role": "assistant", "content": "Oh, "}
    turn(book, messages=[USER, begun_answer], continue_final_message=True)
    assert book.said(KEY) == [USER, {"role": "assistant", "content": "Oh, Hi!"}]


def measured(end: str, own_bytes: int) -> SequenceMeasured:
    return SequenceMeasured(end, 7, 7, own_bytes, 0, own_bytes)


def test_a_session_is_what_was_said_in_all_its_turns() -> None:
    book = new_book()
    turn(book)
    assert book.said(KEY) == [USER, ANSWER]
    turn(book, messages=[USER, ANSWER, USER])
    assert book.said(KEY) == [USER, ANSWER, USER, ANSWER]
    (status,) = book.listing()
    assert (status.client, status.id, status.turns, status.text_tokens) == (*KEY, 2, 7)
    assert status.continuable and not status.active


def test_turns_that_another_worker_answered_count() -> None:
    book = new_book()
    turn(book, messages=[USER, ANSWER, USER, ANSWER, USER])
    assert book.status(KEY).turns == 3


def test_calls_and_reasoning_belong_to_what_was_said(tmp_path: Path) -> None:
    book = new_book(tmp_path)
    request = begun(book)
    choice = request.choices[0]
    head = Output(1, 0, [5], "", reasoning="Hm.", calls=[CallPiece(0, "", "now")])
    request.advance(choice, head)
    request.advance(choice, Output(1, 1, [6], "", "tool_calls", calls=[CallPiece(0, "{}")]))
    book.end(request, answered=True)
    call = {
        "id": call_id(request.key, 0, 0),
        "type": "function",
        "function": {"name": "now", "arguments": "{}"},
    }
    answer = {"role": "assistant", "content": "", "reasoning": "Hm.", "tool_calls": [call]}
    assert book.said(KEY) == [USER, answer]
    assert Message.model_validate(answer).turn == answer, "a client may send it back"
    result = {"role": "tool", "content": "noon", "tool_call_id": call["id"]}
    turn(book, messages=[USER, answer, result])
    book.close()
    assert new_book(tmp_path).said(KEY) == [USER, answer, result, ANSWER]


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
    book = new_book()
    turn(book, **fields)
    assert book.said(KEY) == said
    assert book.said((CLIENT, "other")) is None


def test_sessions_that_nobody_named_keep_no_words() -> None:
    book = new_book()
    turn(book, "auto-0123")
    assert book.said((CLIENT, "auto-0123")) == []
    assert [status.continuable for status in book.listing()] == [False]


def test_a_first_turn_that_failed_leaves_nothing_and_a_later_one_what_was() -> None:
    book = new_book()
    request = begun(book)
    assert book.listing()[0].active
    book.end(request, answered=False)
    assert book.listing() == []
    turn(book)
    book.end(begun(book, messages=[USER, ANSWER, USER]), answered=False)
    assert book.said(KEY) == [USER, ANSWER]


def test_an_engine_follows_the_last_text_of_a_session() -> None:
    orders: list[tuple[int, Order]] = []
    book = new_book(orders=orders)
    turn(book, end="aa")
    assert orders == []
    turn(book, end="bb")
    assert orders == [], "a text that another one goes on from is followed, too"
    book.on_measured(0, [measured("aa", 5), measured("bb", 9)])
    assert book.status(KEY).own_bytes == 9
    book.on_engine_started(0)
    assert orders == [(0, TrackSequence("bb"))]
    assert book.status(KEY).own_bytes == 0, "a new engine has to say what it has"
    book.forget(KEY)
    assert orders[1:] == [(0, DropSequence("bb"))]
    with pytest.raises(RequestError) as error:
        book.forget(KEY)
    assert error.value.code == "unknown_session"


def test_two_sessions_may_have_the_same_text() -> None:
    orders: list[tuple[int, Order]] = []
    book = new_book(orders=orders)
    for session in ("s", "t"):
        turn(book, session, end="aa")
    book.on_measured(0, [measured("aa", 5)])
    assert [status.own_bytes for status in book.listing()] == [5, 5]
    book.pin(KEY, pinned=True)
    book.forget(KEY)
    assert orders == [(0, TrackSequence("aa", pinned=True)), (0, TrackSequence("aa", pinned=False))]
    assert book.status((CLIENT, "t")).own_bytes == 5
    book.forget((CLIENT, "t"))
    assert orders[2:] == [(0, DropSequence("aa"))]


def test_what_is_pinned_stays_pinned_over_turns_and_restarts(tmp_path: Path) -> None:
    orders: list[tuple[int, Order]] = []
    book = new_book(tmp_path, orders=orders)
    turn(book, end="aa")
    assert book.pin(KEY, pinned=True).pinned
    turn(book, end="bb")
    assert [order for _, order in orders] == [
        TrackSequence("aa", pinned=True),
        TrackSequence("aa", pinned=False),
        TrackSequence("bb", pinned=True),
    ]
    book.close()

    orders.clear()
    book = new_book(tmp_path, orders=orders)
    assert [(session.key, session.engine) for session in book.texts()] == [(KEY, 0)]
    book.on_engine_started(1)
    assert orders == [], "another engine has its text"
    book.on_engine_started(0)
    assert orders == [(0, TrackSequence("bb", pinned=True))]
    assert book.said(KEY) == [USER, ANSWER]
    assert not book.pin(KEY, pinned=False).pinned


def test_at_most_half_of_what_is_kept_may_be_pinned() -> None:
    book = new_book(pin_limit_bytes=100)
    for session, end in (("s", "aa"), ("t", "bb")):
        turn(book, session, end=end)
        book.on_measured(0, [measured(end, 30)])
    book.pin(KEY, pinned=True)
    with pytest.raises(RequestError, match="60 bytes; at most 50") as error:
        book.pin((CLIENT, "t"), pinned=True)
    assert error.value.code == "session_quota"
    book.pin(KEY, pinned=True)


def test_sessions_go_when_nobody_used_them_for_long() -> None:
    clock = Clock()
    book = new_book(clock=clock, ttl_s=60)
    for session, end in (("old", "aa"), ("pinned", "bb"), ("new", "cc")):
        turn(book, session, end=end)
        clock.now += 30
    book.pin((CLIENT, "pinned"), pinned=True)
    clock.now += 1
    book.tick()
    assert [status.id for status in book.listing()] == ["new", "pinned"]
    assert [status.idle_s for status in book.listing()] == [31, 61]


def test_a_client_has_so_many_sessions_and_no_more() -> None:
    orders: list[tuple[int, Order]] = []
    book = new_book(orders=orders, max_per_client=2)
    for session, end in (("a", "aa"), ("b", "bb")):
        turn(book, session, end=end)
    turn(book, "a", end="aa")
    turn(book, "c", end="cc")
    assert [status.id for status in book.listing(CLIENT)] == ["c", "a"]
    assert orders == [], "others may still begin like it"
    assert book.listing("nobody") == []  # type: ignore[arg-type]


def test_a_client_may_have_so_many_bytes_and_no_more() -> None:
    orders: list[tuple[int, Order]] = []
    book = new_book(orders=orders, max_mb_per_client=1)
    for session, end in (("a", "aa"), ("b", "bb"), ("c", "cc")):
        turn(book, session, end=end)
        book.on_measured(0, [measured(end, 400_000)])
    assert [status.id for status in book.listing()] == ["c", "b"]
    assert orders == [(0, DropSequence("aa"))]
    book.on_measured(0, [measured("cc", 2_000_000)])
    assert [status.id for status in book.listing()] == ["c"], "the one in use stays"


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"client": 3}', b"\xff\xfe", b'{"nonsense": true}']
)
def test_a_file_that_is_no_session_is_deleted(tmp_path: Path, content: bytes) -> None:
    book = new_book(tmp_path)
    turn(book)
    book.close()
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    bad = tmp_path / ("0" * 32 + ".json")
    for data in (content, kept.read_bytes()):  # the second one is another session's
        bad.write_bytes(data)
        assert len(new_book(tmp_path)) == 1
        assert list(tmp_path.iterdir()) == [kept]
    book = new_book(tmp_path)
    book.forget(KEY)
    book.close()
    assert list(tmp_path.iterdir()) == []


def test_without_a_usable_folder_sessions_live_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    book = new_book(tmp_path / "file" / "folder")
    turn(book)
    turn(book)
    book.close()
    assert book.said(KEY) == [USER, ANSWER]
    assert caplog.text.count("do not survive a restart") == 1
