"""Coding agents and the cluster behind them: a worker that dies, caches, several at once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.agents.coding_agents import start_claude_code, start_codex, start_opencode
from tests.agents.installed import CLAUDE_CODE, CODEX, OPENCODE
from tests.agents.models import DONE
from tests.agents.work import Place, check, note
from tests.controller.gateway.long_answers import workers
from tests.processes import wait_for

pytestmark = pytest.mark.agents

_AT_ONCE = 4
_MOST_ANEW = 0.05
"""Of a second turn's prompt."""


def serving(place: Place) -> list[str]:
    """The workers that compute an answer now."""
    return [each["id"] for each in workers(place.cluster) if each["active_requests"]]


def while_killing(place: Place, run: Callable[[], Any]) -> Any:
    """What an agent said, whose worker was killed in the middle of an answer."""
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run)
        (name, *_) = wait_for(lambda: serving(place), "a worker serves")
        place.cluster.member(name).kill()
        said = running.result()
    wait_for(lambda: len(workers(place.cluster)) == 2, "the worker is back")
    return said


def test_claude_code_goes_on_when_its_worker_dies(place: Place) -> None:
    folder = place.work("claude-code")
    said = while_killing(place, lambda: start_claude_code(place, folder, model="claude-code-slow"))
    assert (said["result"], said["is_error"]) == (DONE, False)
    check(folder)
    note(CLAUDE_CODE, "goes on when its worker is killed", client="Claude Code")


def test_opencode_goes_on_when_its_worker_dies(place: Place) -> None:
    folder = place.work("opencode")
    said = while_killing(place, lambda: start_opencode(place, folder, model="opencode-slow"))
    assert DONE in said
    check(folder)
    note(OPENCODE, "goes on when its worker is killed", client="OpenCode")


def test_claude_codes_second_turn_is_read_from_the_cache(place: Place) -> None:
    folder = place.work("claude-code")
    start_claude_code(place, folder)
    usage = start_claude_code(place, folder, "--continue", task="Thanks.")["usage"]
    anew, cached = usage["input_tokens"], usage["cache_read_input_tokens"]
    assert anew < _MOST_ANEW * (anew + cached)
    note(CLAUDE_CODE, f"second turn: {anew} of {anew + cached} tokens anew", client="Claude Code")


def test_codexs_second_turn_is_read_from_the_cache(place: Place) -> None:
    folder = place.work("codex")
    first = start_codex(place, folder)[-1]["usage"]
    second = start_codex(place, folder, "resume", "--last", task="Thanks.")[-1]["usage"]
    prompt, cached = (
        second[each] - first[each] for each in ("input_tokens", "cached_input_tokens")
    )
    assert prompt - cached < _MOST_ANEW * prompt
    note(CODEX, f"second turn: {prompt - cached} of {prompt} tokens anew", client="Codex CLI")


@pytest.mark.parametrize("start", [start_claude_code, start_codex])
def test_several_at_once_are_served_at_once(place: Place, start: Callable[..., Any]) -> None:
    """Though they are one user's, on one machine."""
    folder = place.work("at-once")
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        running = [threads.submit(start, place, folder, task="LONG") for _ in range(_AT_ONCE)]

        def are_active() -> bool:
            active: int = sum(each["active_requests"] for each in workers(place.cluster))
            return active == _AT_ONCE

        wait_for(are_active, "all are served at once")
        for each in running:
            each.result()
    package, client = (CODEX, "Codex CLI") if start is start_codex else (CLAUDE_CODE, "Claude Code")
    note(package, f"{_AT_ONCE} at once are served at once", client=client)
