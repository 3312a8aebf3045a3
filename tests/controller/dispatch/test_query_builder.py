"""What a request asks of a worker, told with values."""

from typing import Any

import pytest

from controller.dispatch.query_builder import route_query_of
from controller.routing import RouteQuery
from shared.ids import ModelId, WorkerId
from shared.messages.conversation import Message
from shared.messages.prefixes import prefix_chain
from shared.messages.request import Requirements
from shared.settings.kv_cache import PromptLineRule
from tests.controller.values import DEMO, request

HELLO = {"role": "user", "content": "Hello"}


def query(**body: Any) -> RouteQuery:
    return route_query_of(request(**body), (), None)


@pytest.mark.parametrize(
    ("body", "text_bytes", "token_ids"),
    [
        ({"prompt": "Hello"}, 5, 0),
        ({"prompt": "Grüße"}, 7, 0),
        ({"prompt": ["Hello", "you"]}, 8, 0),
        ({"prompt": [7, 8, 9]}, 0, 3),
        ({"prompt": [[7, 8, 9], [7]]}, 0, 4),
        ({"prompt": None, "messages": [HELLO, {"role": "assistant", "content": "Hi"}]}, 7, 0),
    ],
)
def test_the_size_is_that_of_all_prompts(
    body: dict[str, Any], text_bytes: int, token_ids: int
) -> None:
    asked = query(**body)
    assert (asked.text_bytes, asked.token_ids) == (text_bytes, token_ids)


def test_what_was_said_before_in_a_session_belongs_to_it() -> None:
    turn = request(prompt=None, messages=[HELLO], session_id="s")
    alone = route_query_of(turn, (), None)
    turn.history = [Message(role="user", content="Who are you?")]
    whole = route_query_of(turn, (), WorkerId("mac"))
    assert (alone.text_bytes, whole.text_bytes) == (5, 17)
    assert len(whole.links(DEMO)) == 2 and whole.links(DEMO)[0] != alone.links(DEMO)[0]
    assert (alone.home, whole.home) == (None, "mac")


def test_the_links_are_those_that_workers_tell_once_for_each_model() -> None:
    long = request(prompt="x" * 3000)
    asked = route_query_of(long, (), None)
    links = asked.links(DEMO)
    assert [link for link, _ in links] == [link.hex() for link in prefix_chain(DEMO, long.contents)]
    assert [share for _, share in links] == [1024 / 3000, 2048 / 3000, 1.0]
    assert asked.links(DEMO) is links
    assert not {link for link, _ in links} & {link for link, _ in asked.links(ModelId("best"))}


def test_rules_for_prompts_apply_before_they_are_compared() -> None:
    rule = PromptLineRule(pattern="Today is .*")

    def asked(first_line: str) -> RouteQuery:
        system = {"role": "system", "content": f"{first_line}\nBe terse."}
        return route_query_of(request(prompt=None, messages=[system, HELLO]), [rule], None)

    monday, sunday = asked("Today is Monday."), asked("Today is Sunday, the 3rd.")
    assert monday.links(DEMO) == sunday.links(DEMO) != asked("It is Monday.").links(DEMO)
    assert monday.text_bytes == sunday.text_bytes == len("Be terse.Hello")


def test_models_level_and_requirements_are_the_requests() -> None:
    asked = query(priority="urgent", requires={"labels": {"room": "2"}})
    assert (asked.models, asked.level) == ([DEMO], "high")
    assert asked.requires == Requirements(labels={"room": "2"})
    assert (query().level, query().requires) == ("medium", None)


CALL = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
BEGUN = {"role": "assistant", "content": "I am"}
TOOL = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize(
    ("body", "abilities", "structured"),
    [
        ({}, set(), False),
        ({"tools": [TOOL]}, {"tools"}, True),
        ({"tools": [TOOL], "tool_choice": "none"}, set(), False),
        ({"response_format": {"type": "json_object"}}, {"schema"}, True),
        ({"response_format": {"type": "text"}}, set(), False),
        ({"structured_outputs": {"regex": "a+"}}, {"schema"}, True),
        ({"messages": [HELLO, BEGUN], "continue_final_message": True}, {"continuation"}, True),
        ({"messages": [HELLO, BEGUN]}, set(), False),
        ({"reasoning_effort": "none"}, set(), False),
        ({"reasoning_effort": "low"}, set(), True),
        ({"thinking_budget": 0}, set(), True),
        ({"chat_template_kwargs": {"x": 1}}, set(), True),
        ({"messages": [HELLO, {"role": "assistant", "tool_calls": [CALL]}]}, set(), True),
        ({"messages": [HELLO, {"role": "assistant", "reasoning": "Hm."}]}, set(), True),
        ({"resume": {"token_ids": [1], "text_sent": 1}}, set(), False),
        ({"resume": {"token_ids": [1], "sent": {"reasoning": 1}}}, set(), True),
    ],
)
def test_it_says_what_older_workers_would_not_understand(
    body: dict[str, Any], abilities: set[str], structured: bool
) -> None:
    asked = query(**{"prompt": None, "messages": [HELLO], **body})
    assert set(asked.abilities) == abilities
    assert asked.structured == structured


def test_an_answer_that_may_have_begun_with_thinking_goes_on_where_that_is_understood() -> None:
    assert route_query_of(request(), (), None, may_reason=True).structured
