"""Configurations in processes of their own, some at once, each with a time limit."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from tests.architectures.configurations import Configuration
from tests.architectures.judgement import Judgement, Outcome

_RELEVANT_CHARACTERS = 200


def judge_all(
    configurations: Sequence[Configuration], *, jobs: int, limit_s: float
) -> Iterator[Judgement]:
    """In the order in which they are done; what ends its process or takes longer than `limit_s`
    is a judgement, too."""
    with ThreadPoolExecutor(jobs) as threads:
        done = [threads.submit(_judge, each, limit_s) for each in configurations]
        for each in as_completed(done):
            yield each.result()


def _judge(configuration: Configuration, limit_s: float) -> Judgement:
    command = [sys.executable, "-m", "tests.architectures.one"]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(
            command,
            input=configuration.as_json(),
            capture_output=True,
            text=True,
            timeout=limit_s,
            env=environment,
        )
    except subprocess.TimeoutExpired as late:
        return _without_result(configuration, _text(late.stdout), f"not done after {limit_s:.0f} s")
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode == 0 and lines and "outcome" in lines[-1]:
        return Judgement(**lines[-1])
    how = _ending(ended.returncode, ended.stderr)
    return _without_result(configuration, ended.stdout, how)


def _without_result(configuration: Configuration, output: str, how: str) -> Judgement:
    """Of a process that did not get to its end: the stage says whose doing that is."""
    stages = [
        stage
        for line in output.splitlines()
        if line.startswith("{") and (stage := _stage(json.loads(line)))
    ]
    outcome: Outcome = "wrong" if stages[-1:] == ["engine"] else "refused"
    who = "the engine" if outcome == "wrong" else "mlx-lm itself"
    return Judgement(configuration.name, configuration.module, outcome, f"{who}: {how}")


def _stage(line: dict[str, Any]) -> str | None:
    return line.get("stage")


def _ending(code: int, errors: str) -> str:
    last = next((line for line in reversed(errors.splitlines()) if line.strip()), "")
    how = signal.Signals(-code).name if code < 0 else f"code {code}"
    return f"its process ended ({how}): {last[:_RELEVANT_CHARACTERS]}".removesuffix(": ")


def _text(output: bytes | str | None) -> str:
    return output.decode() if isinstance(output, bytes) else output or ""
