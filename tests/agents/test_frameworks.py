"""Frameworks and SDKs do a task with tools: they write a file, copy it with a command, and end."""

import pytest

from tests.agents.installed import (
    AI_SDK,
    ANTHROPIC_NODE,
    ANTHROPIC_PYTHON,
    INSTRUCTOR,
    LANGCHAIN,
    LITELLM,
    OPENAI_NODE,
    OPENAI_PYTHON,
    SMOLAGENTS,
    Installed,
)
from tests.agents.models import DONE
from tests.agents.work import Place, note

pytestmark = pytest.mark.agents

_CHAT, _ALL = ("chat", "responses"), ("chat", "responses", "messages")
_TASKS: list[tuple[Installed, str, str, tuple[str, ...], str]] = [
    (OPENAI_PYTHON, "openai_task.py", "tools", _CHAT, "calls tools, streamed"),
    (
        ANTHROPIC_PYTHON,
        "anthropic_task.py",
        "tools",
        ("messages",),
        "its runner of tools",
    ),
    (OPENAI_NODE, "openai_task.mjs", "tools", _CHAT, "calls tools, streamed"),
    (ANTHROPIC_NODE, "anthropic_task.mjs", "tools", ("messages",), "its runner of tools"),
    (AI_SDK, "ai_sdk_task.mjs", "tools", _ALL, "calls tools, streamed; an object of a schema"),
    (LANGCHAIN, "langchain_task.py", "tools", _ALL, "an agent calls tools; structured output"),
    (INSTRUCTOR, "instructor_task.py", "tools", ("chat", "messages"), "values of a type"),
    (LITELLM, "litellm_task.py", "tools", ("openai", "anthropic"), "calls tools, streamed"),
    (SMOLAGENTS, "smolagents_task.py", "smolagents-tools", ("tools",), "an agent calls tools"),
    (SMOLAGENTS, "smolagents_task.py", "smolagents-code", ("code",), "an agent writes code"),
]


@pytest.mark.parametrize(
    ("package", "script", "model", "how", "what"),
    [
        pytest.param(package, script, model, how, what, id=f"{script}-{how}")
        for package, script, model, ways, what in _TASKS
        for how in ways
    ],
)
def test_a_framework_does_its_task(
    place: Place, package: Installed, script: str, model: str, how: str, what: str
) -> None:
    assert DONE in place.run_task(package, script, model, how)
    note(package, f"{what} ({how})")
