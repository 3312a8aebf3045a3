"""How each coding agent is started against a gateway: what docs/clients.md says, without updates
and without telemetry."""

import json
from pathlib import Path
from typing import Any

from tests.agents.installed import AIDER, CLAUDE_CODE, CODEX, LLM, OPENCODE, QWEN_CODE
from tests.agents.work import Place, command_of

TASK = "TASK: write the answer into a file, then copy it."
_KEY = "none"


def start_claude_code(
    place: Place, folder: Path, *more: str, task: str = TASK, model: str = "claude-code"
) -> dict[str, Any]:
    """What it says of its run at the end."""
    environment = place.environment(
        "claude-code",
        ANTHROPIC_BASE_URL=place.url,
        ANTHROPIC_AUTH_TOKEN=_KEY,
        ANTHROPIC_MODEL=model,
        ANTHROPIC_DEFAULT_HAIKU_MODEL=model,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )
    command = [*command_of(CLAUDE_CODE), "-p", task, "--output-format", "json", *more]
    command += ["--allowedTools", "Write", "Bash"]
    said: dict[str, Any] = json.loads(place.run(command, folder, environment).stdout)
    return said


def start_codex(place: Place, folder: Path, *more: str, task: str = TASK) -> list[dict[str, Any]]:
    """Its events."""
    environment = place.environment("codex", CLUSTER_API_KEY=_KEY)
    home = Path(environment["HOME"]) / ".codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f"""
model = "codex"
model_provider = "cluster"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.cluster]
name = "cluster"
base_url = "{place.url}/v1"
wire_api = "responses"
env_key = "CLUSTER_API_KEY"
"""
    )
    options = ["--skip-git-repo-check", "--sandbox", "danger-full-access", "--json"]
    command = [*command_of(CODEX), "exec", *options, *more, task]
    said = place.run(command, folder, environment).stdout
    return [json.loads(line) for line in said.splitlines()]


def start_opencode(place: Place, folder: Path, *, model: str = "opencode") -> str:
    """What it says."""
    settings = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "model": f"cluster/{model}",
        "small_model": f"cluster/{model}",
        "provider": {
            "cluster": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "cluster",
                "options": {"baseURL": f"{place.url}/v1", "apiKey": _KEY},
                "models": {model: {"name": model}},
            }
        },
    }
    (folder / "opencode.json").write_text(json.dumps(settings))
    environment = place.environment(
        "opencode", OPENCODE_DISABLE_AUTOUPDATE="1", OPENCODE_DISABLE_MODELS_FETCH="1"
    )
    return place.run([*command_of(OPENCODE), "run", TASK], folder, environment).stdout


def start_qwen_code(place: Place, folder: Path) -> str:
    """What it says."""
    environment = place.environment(
        "qwen-code",
        OPENAI_BASE_URL=f"{place.url}/v1",
        OPENAI_API_KEY=_KEY,
        OPENAI_MODEL="qwen-code",
    )
    home = Path(environment["HOME"]) / ".qwen"
    home.mkdir(exist_ok=True)
    quiet = {"privacy": {"usageStatisticsEnabled": False}, "general": {"disableAutoUpdate": True}}
    (home / "settings.json").write_text(json.dumps(quiet))
    options = ["--auth-type", "openai", "--approval-mode", "yolo"]
    return place.run([*command_of(QWEN_CODE), *options, "-p", TASK], folder, environment).stdout


def start_aider(place: Place, folder: Path) -> str:
    """What it says."""
    environment = place.environment("aider", OPENAI_API_BASE=f"{place.url}/v1", OPENAI_API_KEY=_KEY)
    options = [
        "--model", "openai/aider", "--edit-format", "whole", "--yes-always", "--no-git",
        "--no-check-update", "--no-show-model-warnings", "--analytics-disable",
        "--no-show-release-notes", "--no-detect-urls",
    ]  # fmt: skip
    return place.run(
        [*command_of(AIDER, "aider"), *options, "--message", TASK], folder, environment
    ).stdout


def start_llm(place: Place, folder: Path) -> str:
    """What it says."""
    home = Path(place.environment("llm")["HOME"])
    models = [
        {
            "model_id": "tools",
            "model_name": "tools",
            "api_base": f"{place.url}/v1",
            "supports_tools": True,
        }
    ]
    (home / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
    tools = Path(__file__).parent / "tasks" / "tools.py"
    environment = place.environment("llm", LLM_USER_PATH=str(home), OPENAI_API_KEY=_KEY)
    command = [*command_of(LLM, "llm"), "-m", "tools", "--functions", str(tools), "--td", TASK]
    return place.run(command, folder, environment).stdout
