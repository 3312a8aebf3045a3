"""How each coding agent is started against a gateway: with the variables and files that
docs/clients.md tells of, and the flags by which it does one task and ends."""

import json
from pathlib import Path
from typing import Any

from tests.agents.installed import AIDER, CLAUDE_CODE, CODEX, LLM, OPENCODE, QWEN_CODE
from tests.agents.page import block, exports
from tests.agents.work import Place, command_of

TASK = "TASK: write the answer into a file, then copy it."


def start_claude_code(
    place: Place, folder: Path, *more: str, task: str = TASK, model: str = "claude-code"
) -> dict[str, Any]:
    """What it says of its run at the end."""
    variables = exports("Claude Code", place.url, model)
    command = [*command_of(CLAUDE_CODE), "-p", task, "--output-format", "json", *more]
    command += ["--allowedTools", "Write", "Bash"]
    environment = place.environment("claude-code", **variables)
    said: dict[str, Any] = json.loads(place.run(command, folder, environment).stdout)
    return said


def start_codex(place: Place, folder: Path, *more: str, task: str = TASK) -> list[dict[str, Any]]:
    """Its events."""
    environment = place.environment("codex", **exports("Codex CLI", place.url, "codex"))
    home = Path(environment["HOME"]) / ".codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(block("Codex CLI", "toml", place.url, "codex"))
    options = ["--skip-git-repo-check", "--sandbox", "danger-full-access", "--json"]
    command = [*command_of(CODEX), "exec", *options, *more, task]
    said = place.run(command, folder, environment).stdout
    return [json.loads(line) for line in said.splitlines()]


def start_opencode(place: Place, folder: Path, *, model: str = "opencode") -> str:
    """What it says."""
    (folder / "opencode.json").write_text(block("OpenCode", "json", place.url, model))
    environment = place.environment("opencode", **exports("OpenCode", place.url, model))
    return place.run([*command_of(OPENCODE), "run", TASK], folder, environment).stdout


def start_qwen_code(place: Place, folder: Path) -> str:
    """What it says."""
    environment = place.environment("qwen-code", **exports("Qwen Code", place.url, "qwen-code"))
    home = Path(environment["HOME"]) / ".qwen"
    home.mkdir(exist_ok=True)
    quiet = {"privacy": {"usageStatisticsEnabled": False}, "general": {"disableAutoUpdate": True}}
    (home / "settings.json").write_text(json.dumps(quiet))
    options = ["--auth-type", "openai", "--approval-mode", "yolo"]
    return place.run([*command_of(QWEN_CODE), *options, "-p", TASK], folder, environment).stdout


def start_aider(place: Place, folder: Path) -> str:
    """What it says."""
    environment = place.environment("aider", **exports("aider", place.url, "aider"))
    options = [
        "--model", "openai/aider", "--no-show-model-warnings", "--edit-format", "whole",
        "--yes-always", "--no-git", "--no-check-update", "--analytics-disable",
        "--no-show-release-notes", "--no-detect-urls",
    ]  # fmt: skip
    command = [*command_of(AIDER, "aider"), *options, "--message", TASK]
    return place.run(command, folder, environment).stdout


def start_llm(place: Place, folder: Path) -> str:
    """What it says."""
    home = Path(place.environment("llm")["HOME"])
    (home / "extra-openai-models.yaml").write_text(block("llm", "yaml", place.url, "tools"))
    tools = Path(__file__).parent / "tasks" / "tools.py"
    environment = place.environment("llm", LLM_USER_PATH=str(home), OPENAI_API_KEY="none")
    command = [*command_of(LLM, "llm"), "-m", "tools", "--functions", str(tools), "--td", TASK]
    return place.run(command, folder, environment).stdout
