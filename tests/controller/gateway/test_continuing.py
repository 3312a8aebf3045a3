"""A last message of the assistant's is gone on with, as it would have gone on by itself."""

from typing import Any

import openai
import pytest

_ASKED: dict[str, Any] = {"model": "demo", "temperature": 0, "max_tokens": 20}
_QUESTION = {"role": "user", "content": "What is the capital of France?"}


def _answer(client: openai.OpenAI, begun: str | None = None, **fields: Any) -> str:
    messages: list[Any] = [_QUESTION]
    if begun is not None:
        messages.append({"role": "assistant", "content": begun})
    answer = client.chat.completions.create(**_ASKED, messages=messages, **fields)
    return answer.choices[0].message.content or ""


def test_an_answer_goes_on_with_what_was_begun(openai_client: openai.OpenAI) -> None:
    whole = _answer(openai_client)
    begun = whole[: whole.index(" is")]
    assert begun + _answer(openai_client, begun) == whole
    parts: Any = [{"type": "text", "text": begun[:3]}, {"type": "text", "text": begun[3:]}]
    assert begun + _answer(openai_client, parts) == whole


@pytest.mark.parametrize(
    "fields",
    [
        {"extra_body": {"continue_final_message": False}},
        {"response_format": {"type": "json_object"}, "stop": "\n"},
        {"reasoning_effort": "low"},
    ],
    ids=str,
)
def test_where_that_is_not_wanted_it_is_answered(
    openai_client: openai.OpenAI, fields: dict[str, Any]
) -> None:
    whole = _answer(openai_client)
    begun = whole[: whole.index(" is")]
    assert begun + _answer(openai_client, begun, **fields) != whole


def test_what_cannot_go_on_is_refused(openai_client: openai.OpenAI) -> None:
    fields: Any = {"extra_body": {"continue_final_message": True}}
    with pytest.raises(openai.BadRequestError) as caught:
        _answer(openai_client, **fields)
    assert caught.value.param == "continue_final_message"
    with pytest.raises(openai.BadRequestError, match="schema"):
        _answer(openai_client, "It", response_format={"type": "json_object"}, **fields)
