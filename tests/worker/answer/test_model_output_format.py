"""Which format a model answers in: found from its files, or as settings say."""

from typing import get_args

import pytest

from shared.settings.models import ReasoningFormatName, ToolFormatName
from worker.answer.control import AddedToken
from worker.answer.formats.known import TOOL_FORMAT_NAMES
from worker.answer.harmony import HarmonyParser
from worker.answer.model_output_format import find_format
from worker.answer.reasoning import REASONING_FORMATS

HERMES = "{% for call in tool_calls %}<tool_call>{% endfor %}"
THINKS = "<think></think>"


def test_settings_name_every_format() -> None:
    assert set(get_args(ToolFormatName)) == {*TOOL_FORMAT_NAMES, "none"}
    assert set(get_args(ReasoningFormatName)) == {
        *(each.name for each in REASONING_FORMATS),
        "none",
    }


@pytest.mark.parametrize(
    ("tool_format", "reasoning_format", "found"),
    [
        (None, None, ("hermes", "think")),
        ("mistral", None, ("mistral", "think")),
        ("none", None, (None, "think")),
        (None, "mistral", ("hermes", "mistral")),
        ("none", "none", (None, None)),
    ],
)
def test_what_settings_say_goes_before_what_is_found(
    tool_format: str | None, reasoning_format: str | None, found: tuple[str | None, str | None]
) -> None:
    answers = find_format(
        HERMES + THINKS, {}, tool_format=tool_format, reasoning_format=reasoning_format
    )
    names = (each.name if each is not None else None for each in (answers.tools, answers.reasoning))
    assert tuple(names) == found
    assert (answers.can_call, answers.can_reason) == (found[0] is not None, found[1] is not None)


def test_harmony_needs_its_tokens() -> None:
    markers = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>",
               "<|constrain|>")  # fmt: skip
    known = {text: AddedToken(number, True) for number, text in enumerate(markers)}
    assert find_format("", known, tool_format="harmony").messages is HarmonyParser
    assert find_format("", {}, tool_format="harmony").messages is None
