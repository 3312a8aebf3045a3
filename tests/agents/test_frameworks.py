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

_TASKS: list[tuple[Installed, str, str, tuple[str, ...]]] = [
    (OPENAI_PYTHON, "openai_task.py", "tools", ("chat", "responses")),
    (ANTHROPIC_PYTHON, "anthropic_task.py", "tools", ("messages",)),
    (OPENAI_NODE, "openai_task.mjs", "tools", ("chat", "responses")),
    (ANTHROPIC_NODE, "anthropic_task.mjs", "tools", ("messages",)),
    (AI_SDK, "ai_sdk_task.mjs", "tools", ("chat", "responses", "messages")),
    (LANGCHAIN, "langchain_task.py", "tools", ("chat", "responses", "messages")),
    (INSTRUCTOR, "instructor_task.py", "tools", ("chat", "messages")),
    (LITELLM, "litellm_task.py", "tools", ("openai", "anthropic")),
    (SMOLAGENTS, "smolagents_task.py", "smolagents-tools", ("tools",)),
    (SMOLAGENTS, "smolagents_task.py", "smolagents-code", ("code",)),
]


@pytest.mark.parametrize(
    ("package", "script", "model", "how"),
    [
        pytest.param(package, script, model, how, id=f"{script}-{how}")
        for package, script, model, ways in _TASKS
        for how in ways
    ],
)
def test_a_framework_does_its_task(
    place: Place, package: Installed, script: str, model: str, how: str
) -> None:
    assert DONE in place.run_task(package, script, model, how)
    note(package, f"tools, streams: {how}")
