"""How much two prompts have in common, by their chains."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ids import ModelId
from shared.messages.prefixes import PrefixChainSet, prefix_chain
from shared.messages.request import InferenceRequest

_MODEL = ModelId("demo")


def _chain(**body: Any) -> tuple[bytes, ...]:
    return prefix_chain(_MODEL, InferenceRequest(**body))


def _chat(*texts: str) -> tuple[bytes, ...]:
    roles = ("system", "user", "assistant", "user")
    return _chain(messages=[{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)])


def _shared(one: tuple[bytes, ...], other: tuple[bytes, ...]) -> int:
    index = PrefixChainSet()
    index.add(other)
    return index.shared(one)


def test_turns_of_a_conversation_share_all_that_went_before() -> None:
    first = _chat("You are terse.", "Hello")
    second = _chat("You are terse.", "Hello", "Hi.", "And now?")
    assert len(first) == 2
    assert _shared(second, first) == 2
    assert _shared(_chat("You are terse.", "Bye"), first) == 1
    assert _shared(_chat("You are chatty.", "Hello"), first) == 0


def test_long_messages_share_whole_kibibytes() -> None:
    text = "x" * 5000
    assert len(_chat(text)) == 5
    assert _shared(_chat(text + "and more"), _chat(text + "and another")) == 4
    assert _shared(_chain(prompt=text + "one"), _chain(prompt=text + "two")) == 4


def test_parts_of_a_message_count_as_their_text() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert _chain(messages=[{"role": "user", "content": parts}]) == _chain(
        messages=[{"role": "user", "content": "Hello"}]
    )


def test_prompts_of_different_models_share_nothing() -> None:
    request = InferenceRequest(prompt="Hello")
    other = prefix_chain(ModelId("other"), request)
    assert _shared(prefix_chain(_MODEL, request), other) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"prompt": "12"}, {"prompt": [12]}),
        ({"prompt": [1, 2]}, {"prompt": [258]}),
        ({"prompt": "a"}, {"messages": [{"role": "user", "content": "a"}]}),
        (
            {"messages": [{"role": "user", "content": "ab"}]},
            {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
        ),
    ],
)
def test_different_prompts_never_look_alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert _shared(_chain(**one), _chain(**other)) == 0


@given(st.lists(st.text(max_size=4), min_size=1, max_size=4), st.data())
def test_an_index_forgets_what_is_removed(texts: list[str], data: st.DataObject) -> None:
    chains = [_chain(prompt=text) for text in texts if text]
    index = PrefixChainSet()
    for chain in chains:
        index.add(chain)
    for chain in data.draw(st.permutations(chains)):
        assert index.shared(chain) == len(chain)
        index.remove(chain)
    assert all(index.shared(chain) == 0 for chain in chains)
