"""What goes before a turn that comes alone."""

from typing import Any

import pytest

from controller.lifecycle.history import history_needed, history_to_prepend
from controller.requests.request import TrackedRequest
from shared.errors import RequestError
from shared.ids import WorkerId
from shared.messages.conversation import Message
from tests.controller.values import request

MAC = WorkerId("mac")
HELLO = {"role": "user", "content": "Hello"}
HI = {"role": "assistant", "content": "Hi"}
AND = {"role": "user", "content": "And?"}
SAID = [Message.model_validate(each) for each in (HELLO, HI)]
LIMIT = 10_000


def turn(*messages: dict[str, Any], **fields: Any) -> TrackedRequest:
    return request(**{"prompt": None, "messages": list(messages), "session_id": "s", **fields})


def joined(
    one: TrackedRequest, said: list[Message] | None = SAID, *, limit: int = LIMIT
) -> list[str]:
    return [str(each.content) for each in history_to_prepend(one, said, False, limit)]


def error(one: TrackedRequest, said: list[Message] | None, *, too_large: bool = False) -> str:
    with pytest.raises(RequestError) as caught:
        history_to_prepend(one, said, too_large, LIMIT)
    assert caught.value.param == "session_id"
    return caught.value.code


TOOL = {"role": "tool", "content": "12", "tool_call_id": "c"}


@pytest.mark.parametrize(
    ("one", "home", "needed"),
    [
        (turn(AND), MAC, True),
        (turn(TOOL), MAC, True),
        (turn(AND), None, False),
        (turn(HELLO, HI, AND), MAC, False),
        (turn(AND, history="sent"), MAC, False),
        (turn(AND, history="kept"), None, True),
        (turn(HELLO, HI, AND, history="kept"), MAC, True),
        (turn(AND, session_id=None), MAC, False),
        (turn(AND, session_id=None, affinity="s"), MAC, False),
        (request(session_id="s"), MAC, False),
    ],
)
def test_a_turn_may_have_come_alone_where_it_is_the_users_word_and_its_session_is_known(
    one: TrackedRequest, home: WorkerId | None, needed: bool
) -> None:
    assert history_needed(one, home) is needed


def test_what_is_there_already_is_not_needed() -> None:
    one = turn(AND)
    one.history = list(SAID)
    assert not history_needed(one, MAC)


@pytest.mark.parametrize("history", [None, "kept"])
def test_all_that_was_said_goes_before_a_turn(history: str | None) -> None:
    assert joined(turn(AND, history=history)) == ["Hello", "Hi"]


def test_a_turn_that_begins_as_its_session_has_all_itself() -> None:
    assert joined(turn(HELLO, AND)) == []
    assert joined(turn(HELLO, AND, history="kept")) == ["Hello", "Hi"]


def test_a_session_in_which_nothing_was_said_begins() -> None:
    assert joined(turn(AND), []) == []


def test_what_is_not_known_any_more_the_client_is_to_send() -> None:
    assert error(turn(AND), None) == "unknown_session"
    assert error(turn(AND, history="kept"), []) == "unknown_session"


def test_what_does_not_fit_into_a_message_is_too_large() -> None:
    assert error(turn(AND), None, too_large=True) == "payload_too_large"
    assert error(turn(AND), [Message(role="user", content="x" * LIMIT)]) == "payload_too_large"
    half, other_half = ({"role": "user", "content": each * (LIMIT // 2)} for each in "xy")
    assert joined(turn(AND), [Message.model_validate(half)]) == [half["content"]]
    assert error(turn(other_half), [Message.model_validate(half)]) == "payload_too_large", (
        "both count"
    )
