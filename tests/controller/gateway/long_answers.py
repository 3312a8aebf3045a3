"""Answers of the tiny model that take long, and who has how many of them."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import httpx

from tests.asking import Asker
from tests.controller.gateway.gateway_process import GatewayProcess
from tests.processes import ClusterProcess, wait_for

CHAT = "/v1/chat/completions"
_END_TOKEN_ID = 257
QUESTION: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}]}
LONG: dict[str, Any] = QUESTION | {
    "max_tokens": 900, "logit_bias": {str(_END_TOKEN_ID): -100}, "stream": True,
}  # fmt: skip
"""As long as it can be: 900 tokens, without an end before. `n` makes it longer."""


class Streaming:
    """A response on its way.

    Attributes:
        lines: of the body, as they come.
    """

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.lines = response.iter_lines()

    def until(self, beginning: str) -> str:
        """The next line that begins so."""
        return next(line for line in self.lines if line.startswith(beginning))


@contextlib.contextmanager
def streaming(
    gateway: GatewayProcess, body: dict[str, Any], path: str = CHAT
) -> Iterator[Streaming]:
    """Ask, and leave the connection when the block is left."""
    with httpx.stream("POST", gateway.url + path, json=body, timeout=60) as response:
        assert response.status_code == 200
        yield Streaming(response)


def active(cluster: ClusterProcess) -> int:
    """Requests that are served now, waiting or running. Workers may have one in parts."""
    controllers = [report for report in reports(cluster) if "accepted_requests" in report]
    return sum(report["active_requests"] for report in controllers)


def until_active(cluster: ClusterProcess, count: int) -> None:
    """Return once so many requests are served."""

    def explain() -> list[tuple[object, ...]]:
        told = ("id", "state", "active_requests", "queued_requests", "choices", "engines")
        return [tuple(report.get(each) for each in told) for report in reports(cluster)]

    wait_for(lambda: active(cluster) == count, f"{count} are served", explain=explain)


def reports(cluster: ClusterProcess) -> list[dict[str, Any]]:
    """What workers and controllers say of themselves."""

    async def ask() -> list[dict[str, Any]]:
        async with Asker.connect(cluster) as asker:
            return await asker.reports()

    return asyncio.run(ask())


def workers(cluster: ClusterProcess) -> list[dict[str, Any]]:
    """What the workers say of themselves."""
    return [report for report in reports(cluster) if "queued_requests" in report]
