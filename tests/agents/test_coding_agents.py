"""Coding agents, as their users start them: they write a file, copy it with a command, and end."""

import pytest

from tests.agents.coding_agents import (
    start_aider,
    start_claude_code,
    start_codex,
    start_llm,
    start_opencode,
    start_qwen_code,
)
from tests.agents.installed import AIDER, CLAUDE_CODE, CODEX, LLM, OPENCODE, QWEN_CODE
from tests.agents.models import DONE
from tests.agents.work import Place, check, note

pytestmark = pytest.mark.agents


def test_claude_code(place: Place) -> None:
    folder = place.work("claude-code")
    said = start_claude_code(place, folder)
    assert (said["result"], said["is_error"]) == (DONE, False)
    check(folder)
    note(CLAUDE_CODE, "writes a file, runs a command", client="Claude Code")


def test_codex(place: Place) -> None:
    folder = place.work("codex")
    said = start_codex(place, folder)
    messages = [event["item"]["text"] for event in said if event.get("item", {}).get("text")]
    assert messages[-1] == DONE
    check(folder)
    note(CODEX, "runs two commands", client="Codex CLI")


def test_opencode(place: Place) -> None:
    folder = place.work("opencode")
    assert DONE in start_opencode(place, folder)
    check(folder)
    note(OPENCODE, "writes a file, runs a command", client="OpenCode")


def test_qwen_code(place: Place) -> None:
    folder = place.work("qwen-code")
    assert DONE in start_qwen_code(place, folder)
    check(folder)
    note(QWEN_CODE, "writes a file, runs a command", client="Qwen Code")


def test_aider(place: Place) -> None:
    folder = place.work("aider")
    start_aider(place, folder)
    check(folder)
    note(AIDER, "writes two files", client="aider")


def test_llm(place: Place) -> None:
    folder = place.work("llm")
    assert DONE in start_llm(place, folder)
    check(folder)
    note(LLM, "calls two functions of a file")
