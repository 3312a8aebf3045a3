"""Whatever order messages come in, the prompt has all that was said, in a form that the model's
chat template takes."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.utils import load_tokenizer

from shared.errors import InvalidRequest
from tests.tiers import examples
from tests.worker.engine.orders import TEMPLATES
from worker.engine.chat_template import ChatTemplate, RenderedPrompt
from worker.engine.message_order import MessageOrderRules, ordered

Turn = dict[str, Any]

_TAKES: dict[str, set[str]] = {  # beyond turns of user and assistant by turns
    "chatml": {
        "system", "without_user", "later_system", "repeated_roles", "user_after_tool",
        "assistant_first",
    },
    "system first": {"system", "repeated_roles", "user_after_tool", "assistant_first"},
    "alternating": {"system"},
    "no system": set(),
    "silent": {"system", "without_user", "repeated_roles", "assistant_first"},
}  # fmt: skip
_TOOLS = [{"name": "look", "parameters": {"type": "object"}}]


@pytest.fixture(scope="module")
def templates(tiny_model: Path) -> dict[str, ChatTemplate]:
    return {name: made(tiny_model, text) for name, text in TEMPLATES.items()}


@pytest.fixture(scope="module")
def text_of(tiny_model: Path) -> Callable[[RenderedPrompt], str]:
    tokenizer = load_tokenizer(tiny_model)
    return lambda rendered: str(tokenizer.decode(rendered.token_ids))


def made(folder: Path, text: str) -> ChatTemplate:
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = text
    tokenizer.has_chat_template = True
    return ChatTemplate(tokenizer, None, {})


def say(role: str, content: str, **more: Any) -> Turn:
    return {"role": role, "content": content, **more}


def called(content: str) -> Turn:
    function = {"name": "look", "arguments": "{}"}
    call = {"id": "call_1", "type": "function", "function": function}
    return say("assistant", content, tool_calls=[call])


def result(content: str) -> Turn:
    return say("tool", content, tool_call_id="call_1")


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_a_template_takes_is_found(templates: dict[str, ChatTemplate], name: str) -> None:
    found = asdict(templates[name].order)
    assert {each for each, is_taken in found.items() if is_taken} == _TAKES[name]


@st.composite
def conversations(draw: st.DrawFn) -> list[Turn]:
    """Each text once; results behind their calls, perhaps with system messages between."""
    turns: list[Turn] = []
    kinds = st.sampled_from(["system", "user", "assistant", "developer", "call"])
    for number, kind in enumerate(draw(st.lists(kinds, min_size=1, max_size=8))):
        if kind != "call":
            turns.append(say(kind, f"text{number}."))
            continue
        turns.append(called(f"text{number}."))
        if draw(st.booleans()):
            turns.append(say("system", f"held{number}."))
        turns += [result(f"result{number}-{n}.") for n in range(draw(st.integers(1, 2)))]
    return turns


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=examples(100, 5000))
@given(turns=conversations())
def test_all_that_was_said_comes_out_once_and_in_its_order(
    templates: dict[str, ChatTemplate],
    text_of: Callable[[RenderedPrompt], str],
    name: str,
    turns: list[Turn],
) -> None:
    template = templates[name]
    rendered = template.render(turns, _TOOLS if template.knows_tools else [], {})
    prompt = text_of(rendered)
    texts = [turn["content"] for turn in turns]
    assert [prompt.count(text) for text in texts] == [1] * len(texts), prompt
    unheld = [text for text in texts if not text.startswith("held")]
    places = [prompt.index(text) for text in unheld]
    assert places == sorted(places), prompt


@given(turns=conversations())
def test_what_a_template_takes_is_not_changed(turns: list[Turn]) -> None:
    leading = 0
    while leading < len(turns) and turns[leading]["role"] == "system":
        leading += 1
    found, changes = ordered(turns, MessageOrderRules())
    if leading < 2:
        assert (found, changes) == (turns, [])
    else:
        merged = "\n\n".join(turn["content"] for turn in turns[:leading])
        assert found == [say("system", merged), *turns[leading:]] and len(changes) == 1


STRICT = MessageOrderRules(
    later_system=False, repeated_roles=False, user_after_tool=False, assistant_first=False
)


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (
            [say("user", "a"), say("system", "b")],
            [say("user", "a\n\nb")],
        ),
        (
            [say("user", "a"), say("assistant", "b"), say("system", "c"), say("user", "d")],
            [say("user", "a"), say("assistant", "b"), say("user", "c\n\nd")],
        ),
        (
            [say("user", "a"), called("b"), say("system", "c"), result("d"), result("e")],
            [say("user", "a"), called("b"), result("d"), result("e\n\nc")],
        ),
        (
            [say("assistant", "a"), say("user", "b"), say("user", "c")],
            [say("user", ""), say("assistant", "a"), say("user", "b\n\nc")],
        ),
        (
            [say("user", "a"), say("assistant", "b", reasoning="x"), called("c")],
            [say("user", "a"), called("b\n\nc") | {"reasoning": "x"}],
        ),
        (
            [say("user", "a", name="ada"), say("user", "b", name="bob")],
            [say("user", "a\n\nb")],
        ),
        (
            [say("user", "a"), called("b"), called("c")],
            [say("user", "a"), called("b"), called("c")],
        ),
    ],
)  # fmt: skip
def test_messages_are_put_in_order(turns: list[Turn], expected: list[Turn]) -> None:
    found, changes = ordered(turns, STRICT)
    assert found == expected and bool(changes) == (turns != expected)


# An answer that goes on.


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("text", ["The capital is", "It is ", "<|im_end|>", "a\n\n", "</think>"])
def test_a_last_message_is_gone_on_with_to_its_last_character(
    templates: dict[str, ChatTemplate],
    text_of: Callable[[RenderedPrompt], str],
    name: str,
    text: str,
) -> None:
    template = templates[name]
    assert template.continues
    rendered = template.render([say("user", "Hi"), say("assistant", text)], [], {}, continues=True)
    prompt = text_of(rendered)
    assert prompt.endswith(text) and "Hi" in prompt
    assert rendered.closed_reasoning and rendered.end == ""


def test_a_template_that_leaves_it_out_cannot(tiny_model: Path) -> None:
    template = made(
        tiny_model,
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
    )
    assert not template.continues
    turns = [say("user", "Hi"), say("assistant", "I")]
    with pytest.raises(InvalidRequest) as caught:
        template.render(turns, [], {}, continues=True)
    assert caught.value.param == "continue_final_message"
