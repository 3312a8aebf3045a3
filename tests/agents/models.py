"""A scripted model for each agent: it calls the agent's own tools, takes the results, and ends."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.scripted.families import TEMPLATES
from tests.scripted.folders import make_scripted_model
from tests.worker.answer.families import FAMILIES

ANSWER, COPY = "answer.txt", "copy.txt"
CONTENT = "42\n"
DONE = "All is done."
_COPIED = "COPIED"
_COMMAND = f"cp {ANSWER} {COPY} && echo {_COPIED}"
_FAMILY = "hermes"
_NO_THINKING = "<think>\n\n</think>\n\n"
_PERSON = {"name": "Ada", "age": 36}
(_WRITES,) = (family.write for family in FAMILIES if family.name == _FAMILY)
_TALK = " ".join(f"I think of the number {number}." for number in range(250))

Call = tuple[str, dict[str, Any]]
"""A tool's name and its arguments, these in the order in which the tool describes them."""


def make_models(folder: Path, tokenizer_of: Path, work: Path) -> Mapping[str, Path]:
    """Write a model's folder for each agent; returns them by the agents' names.

    Args:
        work: each agent works in the folder of its name there.
    """
    made = {}
    for name, scripts in _scripts(work).items():
        template = TEMPLATES[_FAMILY]
        made[name] = make_scripted_model(folder / name, tokenizer_of, template, scripts)
    return made


def _talkative(scripts: Mapping[str, str]) -> Mapping[str, str]:
    """The same, but that it talks for long before each call."""
    acts = ("I copy it.", "I write it.")
    return {
        when: next((say.replace(act, f"{_TALK} {act}") for act in acts if act in say), say)
        for when, say in scripts.items()
    }


def _scripts(work: Path) -> Mapping[str, Mapping[str, str]]:
    def path(agent: str) -> str:
        return str(work / agent / ANSWER)

    run = {"command": _COMMAND}
    claude_code = _calls(
        ("Write", {"file_path": path("claude-code"), "content": CONTENT}),
        ("Bash", {**run, "description": "copies"}),
    )
    opencode = _calls(("write", {"content": CONTENT, "filePath": path("opencode")}), ("bash", run))
    tools: tuple[Call, Call] = (
        ("write_file", {"path": ANSWER, "content": CONTENT}), ("run_command", run)
    )  # fmt: skip
    return {
        "claude-code": claude_code,
        "claude-code-slow": _talkative(claude_code),
        "opencode": opencode,
        "opencode-slow": _talkative(opencode),
        "codex": _calls(
            ("exec_command", {"cmd": f"printf '42\\n' > {ANSWER}"}),
            ("exec_command", {"cmd": _COMMAND}),
        ),
        "qwen-code": _calls(
            ("write_file", {"file_path": path("qwen-code"), "content": CONTENT}),
            ("run_shell_command", {**run, "is_background": False, "description": "copies"}),
        ),
        "aider": {
            "TASK": f"I write both.\n\n{ANSWER}\n```\n{CONTENT}```\n\n{COPY}\n```\n{CONTENT}```\n",
            "": "Fine.",
        },
        "tools": _PERSONS | _calls(*tools),
        "smolagents-tools": _calls(*tools, end=("final_answer", {"answer": DONE})),
        "smolagents-code": {
            "TASK": f"{_thinks('I write code.')}Thought: all at once.\n<code>\n"
            f"write_file(path='{ANSWER}', content='42\\n')\n"
            f"run_command(command='{_COMMAND}')\nfinal_answer('{DONE}')\n</code>",
        },
    }


def _calls(write: Call, run: Call, end: Call | None = None) -> dict[str, str]:
    """Of a model that writes a file, copies it with a command, and ends.

    Args:
        end: the tool with which it has to end, where all that it may do is call tools; else it
            says so.
    """
    copies, writes = ("", "") if end is not None else ("I copy it.\n", "I write it.\n")
    copy = f"{_thinks('It is there.')}{copies}{_WRITES([run])}"
    return {
        _COPIED: f"{_thinks('It is copied.')}{DONE if end is None else _WRITES([end])}",
        "<tool_response>": copy,
        "Observation:": copy,  # as smolagents tells of results
        "TASK": f"{_thinks('First the file.')}{writes}{_WRITES([write])}",
        "LONG": f"{_thinks('Much.')}{_TALK}",
        "": f"{_NO_THINKING}Fine.",
    }


def _thinks(thought: str) -> str:
    return f"<think>\n{thought}\n</think>\n\n"


_PERSONS = {
    "PERSON as JSON": f"{_NO_THINKING}{json.dumps(_PERSON)}",
    "PERSON by Person": f"{_NO_THINKING}{_WRITES([('Person', _PERSON)])}",
    "PERSON by json": f"{_NO_THINKING}{_WRITES([('json', _PERSON)])}",
    "PERSON by final_result": f"{_NO_THINKING}{_WRITES([('final_result', _PERSON)])}",
}
