"""The official `anthropic` client, unmodified, against the real model."""

from typing import Any

import anthropic
import pytest

_MODEL = "demo"
_ASKED: Any = {
    "model": _MODEL,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 20,
    "extra_body": {"temperature": 0},  # the client has no such field any more
}


def _read(usage: anthropic.types.Usage) -> int:
    """Tokens of the prompt: those that were computed, and those that were kept."""
    return usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_message(anthropic_client: anthropic.Anthropic) -> None:
    message = anthropic_client.messages.create(
        **_ASKED, system=[{"type": "text", "text": "Be brief."}]
    )
    (block,) = message.content
    assert block.type == "text" and "Paris" in block.text
    assert (message.role, message.stop_reason, message.model) == ("assistant", "end_turn", _MODEL)
    assert _read(message.usage) > 10 and message.usage.output_tokens > 2


def test_a_stream_has_every_event_and_says_the_same(anthropic_client: anthropic.Anthropic) -> None:
    whole = anthropic_client.messages.create(**_ASKED)
    with anthropic_client.messages.stream(**_ASKED) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert [block.text for block in message.content if block.type == "text"] == [
        block.text for block in whole.content if block.type == "text"
    ]
    assert _read(message.usage) == _read(whole.usage)
    assert message.usage.output_tokens == whole.usage.output_tokens
    assert message.stop_reason == "end_turn"
    raw = [kind for kind in kinds if kind != "text"]
    assert raw[:2] == ["message_start", "content_block_start"]
    assert raw[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(raw[2:-3]) == {"content_block_delta"}


def test_the_start_of_a_stream_tells_what_was_read(anthropic_client: anthropic.Anthropic) -> None:
    with anthropic_client.messages.stream(**_ASKED) as stream:
        start = next(iter(stream))
        final = stream.get_final_message()
    assert start.type == "message_start"
    assert start.message.usage.input_tokens == final.usage.input_tokens > 0


def test_tokens_are_counted_as_they_would_be_read(anthropic_client: anthropic.Anthropic) -> None:
    asked = {name: _ASKED[name] for name in ("model", "messages")} | {"system": "Be brief."}
    counted = anthropic_client.messages.count_tokens(**asked)
    read = anthropic_client.messages.create(**asked, max_tokens=1)
    assert counted.input_tokens == _read(read.usage)
    turn: Any = {"role": "user", "content": "word " * 5000}  # more than the context has
    assert anthropic_client.messages.count_tokens(model=_MODEL, messages=[turn]).input_tokens > 5000
    with pytest.raises(anthropic.NotFoundError):
        anthropic_client.messages.count_tokens(**{**asked, "model": "claude-17"})


def test_why_it_stopped(anthropic_client: anthropic.Anthropic) -> None:
    stopped = anthropic_client.messages.create(**_ASKED, stop_sequences=["###", "Paris"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Paris")
    short = anthropic_client.messages.create(**{**_ASKED, "max_tokens": 2})
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 2)
    with anthropic_client.messages.stream(**_ASKED, stop_sequences=["Paris"]) as stream:
        assert stream.get_final_message().stop_sequence == "Paris"


def test_models_are_listed_in_its_own_shape(anthropic_client: anthropic.Anthropic) -> None:
    assert {model.id for model in anthropic_client.models.list()} == {_MODEL, "chat"}
    assert anthropic_client.models.retrieve(_MODEL).display_name == _MODEL


def test_errors_are_the_clients_own(anthropic_client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        anthropic_client.messages.create(**{**_ASKED, "model": "claude-17"})
    with pytest.raises(anthropic.BadRequestError) as wrong:
        anthropic_client.messages.create(**{**_ASKED, "extra_body": {"temperature": 9}})
    assert "temperature" in str(wrong.value)


def test_a_last_message_of_the_assistants_is_gone_on_with(
    anthropic_client: anthropic.Anthropic,
) -> None:
    whole = anthropic_client.messages.create(**_ASKED).content[0]
    assert whole.type == "text"
    begun = whole.text[: whole.text.index(" is")]
    turns: Any = [*_ASKED["messages"], {"role": "assistant", "content": begun}]
    rest = anthropic_client.messages.create(**{**_ASKED, "messages": turns}).content[0]
    assert rest.type == "text" and begun + rest.text == whole.text
