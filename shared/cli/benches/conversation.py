"""The conversation of an agent; each turn sends the whole conversation."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from shared.client import Cluster, Stream
from shared.errors import ClusterError, StreamFailed

_TIMEOUT_MS = 3_600_000
_TOO_LONG = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The answer of one turn with its costs. Agents and turns count from 1.

    Attributes:
        first_token_s: from the request to the first token.
        seconds: from the request to the end of the answer.
    """

    agent: int
    turn: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_token_s: float
    seconds: float
    text: str

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were not cached."""
        return self.prompt_tokens - self.cached_tokens


class AgentConversation:
    """The messages of an agent and the model so far.

    Args:
        number: number of the agent, from 1.
        recorded: answers by turn that replace the model's answers in the conversation, so that the
            prompts equal those of another run.
    """

    def __init__(self, number: int, system: str, recorded: Mapping[int, str]) -> None:
        self.number = number
        self._recorded = recorded
        self._messages = [{"role": "system", "content": system}]

    async def ask(self, cluster: Cluster, turn: int, prompt: str, max_tokens: int) -> TurnResult:
        """Send one turn, and return the answer.

        Raises:
            ClusterError: the request failed; names the agent and the turn.
        """
        self._messages.append({"role": "user", "content": prompt})
        try:
            answer = await self._answer(cluster, turn, max_tokens)
        except ClusterError as error:
            raise self._failure(error, turn) from None
        text = self._recorded.get(turn, answer.text)
        self._messages.append({"role": "assistant", "content": text})
        return answer

    async def _answer(self, cluster: Cluster, turn: int, max_tokens: int) -> TurnResult:
        sent_at = time.perf_counter()
        stream = cluster.stream(
            list(self._messages),
            session_id=f"agent-{self.number}",
            temperature=0,
            max_tokens=max_tokens,
            timeout_ms=_TIMEOUT_MS,
        )
        text, first_token_s = await _read(stream, sent_at)
        assert stream.usage is not None
        return TurnResult(
            agent=self.number,
            turn=turn,
            prompt_tokens=stream.usage.prompt_tokens,
            cached_tokens=stream.usage.cached_tokens,
            completion_tokens=stream.usage.completion_tokens,
            first_token_s=first_token_s,
            seconds=time.perf_counter() - sent_at,
            text=text,
        )

    def _failure(self, error: ClusterError, turn: int) -> ClusterError:
        advice = ""
        if error.code == _TOO_LONG:
            advice = "; choose fewer --turns, or smaller --system-tokens or --turn-tokens"
        return StreamFailed(
            f"agent {self.number}, turn {turn}: {error.message}{advice}",
            code=error.code,
            param=error.param,
        )


async def _read(stream: Stream, sent_at: float) -> tuple[str, float]:
    """Return the whole text and the seconds to the first token, else to the end."""
    text, first_token_s = "", 0.0
    async with stream:
        async for chunk in stream:
            first_token_s = first_token_s or time.perf_counter() - sent_at
            text += chunk.text
    return text, first_token_s
