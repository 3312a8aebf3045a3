"""Hands a question to the cluster, if its caller may ask it, and counts what becomes of it."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from controller.gateway.api_keys import ApiKey
from controller.gateway.metrics import GatewayMetrics
from controller.gateway.model_directory import ModelDirectory
from controller.gateway.quotas import Quotas
from shared.bus import Bus
from shared.client import Cluster, Completion, Stream
from shared.client.inboxes import SharedInbox
from shared.errors import ClusterError
from shared.ids import ClientName, ModelId, RequestId
from shared.messages.priorities import PRIORITIES, Priority
from shared.messages.stream import ChoiceOutput, Usage
from shared.subjects import INBOX_PREFIX

logger = logging.getLogger(__name__)

_DEFAULT_PRIORITY: Priority = "medium"
_LOOKS = 4
"""So often within its time an answer that stands still is looked at."""


@dataclass(frozen=True, slots=True)
class InferenceCall:
    """What a caller asks, in the cluster's own fields.

    Attributes:
        model: a model, a skill or an alias.
        priority: None where the caller did not say.
    """

    request_id: RequestId
    model: str
    priority: Priority | None
    fields: dict[str, Any]

    @property
    def counts_only(self) -> bool:
        """Whether it asks for a number alone; that is no use of a model."""
        return bool(self.fields.get("count_only"))


class ActiveCompletion:
    """One question and its answer, while it is open."""

    def __init__(self, stream: Stream, asked_at: float, idle_timeout_s: float) -> None:
        self._stream = stream
        self._asked_at = asked_at
        self._idle_timeout_s = idle_timeout_s
        self.first_token_s: float | None = None

    @property
    def stream(self) -> Stream:
        return self._stream

    @property
    def usage(self) -> Usage:
        """Of the whole answer, once it is there."""
        assert self._stream.usage is not None
        return self._stream.usage

    async def updates(self, *, at_least_every_s: float) -> AsyncGenerator[list[ChoiceOutput], None]:
        """As `Stream.updates`.

        Raises:
            ClusterError: `deadline_exceeded`: nothing went forward for too long.
        """
        every_s = min(at_least_every_s, self._idle_timeout_s / _LOOKS)
        state, moved_at = self._state, time.monotonic()
        async for outputs in self._stream.updates(at_least_every_s=every_s):
            now = time.monotonic()
            if outputs or state != self._state:
                state, moved_at = self._state, now
            elif now - moved_at > self._idle_timeout_s:
                raise ClusterError(
                    f"nothing came for {self._idle_timeout_s:g} s (gateway.idle_timeout_ms)",
                    code="deadline_exceeded",
                )
            if outputs and self.first_token_s is None:
                self.first_token_s = now - self._asked_at
            yield outputs

    async def collect(self) -> Completion:
        """The whole answer.

        Raises: as `updates` does.
        """
        async with contextlib.aclosing(self.updates(at_least_every_s=math.inf)) as updates:
            found = [output async for outputs in updates for output in outputs]
        completion = self._stream.completed(found)
        self.first_token_s = completion.timings.ttft_ms / 1000
        return completion

    @property
    def _state(self) -> tuple[str | None, float | None]:
        """What changes while there is no token yet."""
        return self._stream.status, self._stream.progress


class InferenceService:
    """One for the whole gateway.

    Args:
        strict: whether each client's answers must come to inboxes of its name; else all share one.
        idle_timeout_s: so long may an answer stand still.
    """

    def __init__(
        self,
        bus: Bus,
        directory: ModelDirectory,
        quotas: Quotas,
        metrics: GatewayMetrics,
        *,
        strict: bool,
        idle_timeout_s: float,
    ) -> None:
        self._bus = bus
        self._directory = directory
        self._quotas = quotas
        self._metrics = metrics
        self._strict = strict
        self._idle_timeout_s = idle_timeout_s
        self._inboxes: dict[str, SharedInbox] = {}

    @asynccontextmanager
    async def active(self, key: ApiKey, question: InferenceCall) -> AsyncIterator[ActiveCompletion]:
        """Ask; a question that is left before its answer is there is cancelled.

        Raises:
            RequestError: the model is unknown, or a field is wrong.
            Unavailable: no controller answers.
            ClusterError: `not_allowed` or `rate_limit_exceeded`.
        """
        asked_at = time.monotonic()
        model, code = "", "ok"
        self._metrics.began()
        active: ActiveCompletion | None = None
        try:
            skill, named = await self._directory.resolve(question.model, key.models)
            model = named or skill
            priority = _priority(key, question, model)
            async with self._quotas.admit(key):
                fields = {**question.fields, "priority": priority}
                if named is not None:
                    fields["model"] = named
                stream = self._cluster(key.client).stream(
                    skill=skill, request_id=question.request_id, **fields
                )
                async with stream:
                    active = ActiveCompletion(stream, asked_at, self._idle_timeout_s)
                    yield active
        except asyncio.CancelledError:
            code = "client_gone"
            raise
        except ClusterError as error:
            code = error.code
            raise
        except Exception:
            code = "internal_error"
            raise
        finally:
            seconds = time.monotonic() - asked_at
            self._metrics.ended(key.client, model, code, seconds)
            if active is not None and not question.counts_only:
                await self._account(key, ModelId(model), active)
            logger.info(
                "%s: %s for %s after %.2f s", code, model or "no model", key.client, seconds,
                extra={"request_id": question.request_id, "client": key.client, "code": code},
            )  # fmt: skip

    async def _account(self, key: ApiKey, model: ModelId, active: ActiveCompletion) -> None:
        if active.first_token_s is not None:
            self._metrics.first_token(model, active.first_token_s)
        if (usage := active.stream.usage) is not None:
            self._metrics.used(key.client, model, usage)
            await self._quotas.charge(key, usage.prompt_tokens + usage.completion_tokens)

    def _cluster(self, client: ClientName) -> Cluster:
        prefix = f"{INBOX_PREFIX}.{client}" if self._strict else INBOX_PREFIX
        inbox = self._inboxes.get(prefix)
        if inbox is None:
            unique = self._bus.new_inbox().rpartition(".")[2]
            inbox = self._inboxes[prefix] = SharedInbox(self._bus, f"{prefix}.{unique}")
        return Cluster(self._bus, client, inbox)


def _priority(key: ApiKey, question: InferenceCall, model: str) -> Priority:
    """The one asked for, or medium, at most what the key allows.

    Raises:
        ClusterError: the key does not allow the model or the priority asked for.
    """
    if key.models is not None and not {model, question.model} & set(key.models):
        raise ClusterError(
            f"model: this key is for {', '.join(key.models)}, not for {question.model}",
            code="not_allowed",
            param="model",
        )
    rank = PRIORITIES.index
    if question.priority is None:
        return max(_DEFAULT_PRIORITY, key.max_priority, key=rank)
    if rank(question.priority) < rank(key.max_priority):
        raise ClusterError(
            f"priority: this key allows {key.max_priority} at most",
            code="not_allowed",
            param="priority",
        )
    return question.priority
