"""Publishes requests to the cluster within the limits of their API keys, and counts them."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from controller.gateway.api_keys import ApiKey
from controller.gateway.metrics import GatewayMetrics
from controller.gateway.model_resolver import ModelResolver
from controller.gateway.rate_limiter import ClientRateLimiter, TokenMeter
from controller.gateway.traced_app import CallerSpan
from shared.bus import Bus
from shared.client import Cluster, Completion, Embeddings, Ranking, Scores, Stream
from shared.client.inboxes import SharedInbox
from shared.errors import ClusterError
from shared.ids import ClientName, ModelId, RequestId
from shared.messages.base import PRIORITIES, Priority
from shared.messages.stream import ChoiceOutput, Usage
from shared.output_history import OutputHistory
from shared.subjects import INBOX_PREFIX
from shared.telemetry import gen_ai

logger = logging.getLogger(__name__)

_R = TypeVar("_R", Embeddings, Scores, Ranking)

_DEFAULT_PRIORITY: Priority = "medium"
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Of an answer that is not streamed to its caller, in memory."""
_CHECKS_PER_TIMEOUT = 4
"""How often a stalled answer is checked within the idle timeout."""


@dataclass(frozen=True, slots=True)
class CallerRequest:
    """A request of an HTTP caller, with the fields of the cluster's request.

    Attributes:
        model: a model, a skill or an alias.
        priority: None if the caller set none.
        span: None if the request is not traced.
        prepare: returns further fields. Called once the request is within the limits of its key: it
            may read what was stored.
    """

    request_id: RequestId
    model: str
    priority: Priority | None
    fields: dict[str, Any]
    span: CallerSpan | None = None
    prepare: Callable[[], Awaitable[dict[str, Any]]] | None = None

    @property
    def counts_only(self) -> bool:
        """Whether the request only counts the prompt's tokens, which are then not charged."""
        return bool(self.fields.get("count_only"))


class InferenceStream:
    """The stream of one open request."""

    def __init__(
        self, stream: Stream, started_at: float, idle_timeout_s: float, meter: TokenMeter
    ) -> None:
        self._stream = stream
        self._started_at = started_at
        self._idle_timeout_s = idle_timeout_s
        self._meter = meter
        self._received_tokens = 0
        self.first_token_s: float | None = None

    @property
    def stream(self) -> Stream:
        return self._stream

    @property
    def usage(self) -> Usage:
        """Return the usage of the whole answer; only valid after its end."""
        assert self._stream.usage is not None
        return self._stream.usage

    @property
    def usage_so_far(self) -> Usage | None:
        """The usage of what came until now; None before the first token."""
        usage = self._stream.usage
        if usage is None or usage.completion_tokens >= self._received_tokens:
            return usage
        return replace(usage, completion_tokens=self._received_tokens)

    async def updates(self, *, at_least_every_s: float) -> AsyncGenerator[list[ChoiceOutput], None]:
        """Yield updates as `Stream.updates` does.

        Raises:
            ClusterError: `deadline_exceeded`: no output and no progress within the idle timeout.
        """
        every_s = min(at_least_every_s, self._idle_timeout_s / _CHECKS_PER_TIMEOUT)
        state, progressed_at = self._state, time.monotonic()
        async for outputs in self._stream.updates(at_least_every_s=every_s):
            now = time.monotonic()
            if outputs or state != self._state:
                state, progressed_at = self._state, now
            elif now - progressed_at > self._idle_timeout_s:
                raise ClusterError(
                    f"no progress for {self._idle_timeout_s:g} s (gateway.idle_timeout_ms)",
                    code="deadline_exceeded",
                )
            if outputs:
                if self.first_token_s is None:
                    self.first_token_s = now - self._started_at
                self._received_tokens += sum(len(output.token_ids) for output in outputs)
                if self._meter.is_due(now) and (usage := self.usage_so_far) is not None:
                    await self._meter.charge(_charged_tokens(usage))
            yield outputs

    async def collect(self) -> Completion:
        """Return the whole answer.

        Raises: as `updates`; or ClusterError: `answer_too_large`.
        """
        answer = OutputHistory(self._stream.choices, streams=False, max_bytes=_MAX_ANSWER_BYTES)
        async with contextlib.aclosing(self.updates(at_least_every_s=math.inf)) as updates:
            async for outputs in updates:
                for output in outputs:
                    answer.append(output)
                if answer.is_too_large:
                    raise ClusterError(
                        f"the answer has more than {_MAX_ANSWER_BYTES >> 20} MB; use stream: true",
                        code="answer_too_large",
                    )
        completion = self._stream.completed(answer.since(None, 0))
        self.first_token_s = completion.timings.ttft_ms / 1000
        return completion

    @property
    def _state(self) -> tuple[str | None, float | None]:
        """Return what changes while there is no token yet."""
        return self._stream.status, self._stream.progress


@dataclass(slots=True)
class _Admitted:
    """A request within the limits of its key.

    Attributes:
        fields: of the cluster's request.
        first_token_s, usage, finish_reason: set when the request ends, however it does; counted or
            traced then.
    """

    cluster: Cluster
    skill: str
    fields: dict[str, Any]
    started_at: float
    meter: TokenMeter
    first_token_s: float | None = None
    usage: Usage | None = None
    finish_reason: str | None = None


class InferenceClient:
    """Publishes the requests of all callers.

    Args:
        strict: whether each client has an inbox under its own name; else all share one inbox.
        idle_timeout_s: maximum time without output and without progress.
    """

    def __init__(
        self,
        bus: Bus,
        directory: ModelResolver,
        quotas: ClientRateLimiter,
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
    async def active(self, key: ApiKey, call: CallerRequest) -> AsyncIterator[InferenceStream]:
        """Publish the request. Leaving the context before the end of the answer cancels it.

        Raises:
            RequestError: the model is unknown, or a field is invalid.
            Unavailable: no controller answers.
            ClusterError: `not_allowed` or `rate_limit_exceeded`; or as `call.prepare`.
        """
        async with self._admitted(key, call) as admitted:
            stream = admitted.cluster.stream(
                None, skill=admitted.skill, request_id=call.request_id, **admitted.fields
            )
            async with stream:
                active = InferenceStream(
                    stream, admitted.started_at, self._idle_timeout_s, admitted.meter
                )
                try:
                    yield active
                finally:
                    admitted.first_token_s = active.first_token_s
                    admitted.usage = active.usage_so_far
                    admitted.finish_reason = stream.finish_reason

    async def complete(
        self,
        key: ApiKey,
        call: CallerRequest,
        body: Callable[[Completion], Awaitable[dict[str, Any]]],
    ) -> dict[str, Any]:
        """Return the body of the whole answer; making it is part of the request.

        Raises: as `active`.
        """
        async with self.active(key, call) as active:
            return await body(await active.collect())

    async def encode(
        self,
        key: ApiKey,
        call: CallerRequest,
        send: Callable[[Cluster, dict[str, Any]], Awaitable[_R]],
    ) -> _R:
        """Return the embeddings or scores for which `send` asks the cluster, with these fields.

        Raises: as `active`.
        """
        async with self._admitted(key, call) as admitted:
            result = await send(admitted.cluster, {"skill": admitted.skill, **admitted.fields})
            admitted.usage = result.usage
            return result

    @asynccontextmanager
    async def _admitted(self, key: ApiKey, call: CallerRequest) -> AsyncIterator["_Admitted"]:
        """Admit a request within the limits of its key, and count it.

        Raises: as `active`.
        """
        started_at = time.monotonic()
        model, code = "", "ok"
        self._metrics.request_started()
        admitted: _Admitted | None = None
        try:
            skill, model_id = await self._directory.resolve(call.model, key.models)
            model = model_id or skill
            priority = _priority(key, call, model)
            async with self._quotas.admit(key):
                fields = {**call.fields, "priority": priority}
                if call.prepare is not None:
                    fields |= await call.prepare()
                if model_id is not None:
                    fields["model"] = model_id
                cluster, meter = self._cluster(key.client), self._quotas.meter(key)
                admitted = _Admitted(cluster, skill, fields, started_at, meter)
                yield admitted
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
            seconds = time.monotonic() - started_at
            trace_id = call.span.trace_id if call.span is not None else ""
            self._metrics.request_finished(key.client, model, code, seconds, trace_id)
            if call.span is not None:
                _describe(call.span, call, code, admitted)
            if admitted is not None and not call.counts_only:
                await self._account(key, ModelId(model), admitted, trace_id)
            logger.info(
                "%s: %s for %s after %.2f s", code, model or "no model", key.client, seconds,
                extra={"request_id": call.request_id, "client": key.client, "code": code},
            )  # fmt: skip

    async def _account(
        self, key: ApiKey, model: ModelId, admitted: "_Admitted", trace_id: str
    ) -> None:
        if admitted.first_token_s is not None:
            self._metrics.first_token(model, admitted.first_token_s, trace_id)
        if (usage := admitted.usage) is not None:
            self._metrics.tokens_used(key.client, model, usage)
            await admitted.meter.charge(_charged_tokens(usage))

    def _cluster(self, client: ClientName) -> Cluster:
        prefix = f"{INBOX_PREFIX}.{client}" if self._strict else INBOX_PREFIX
        inbox = self._inboxes.get(prefix)
        if inbox is None:
            unique = self._bus.new_inbox().rpartition(".")[2]
            inbox = self._inboxes[prefix] = SharedInbox(self._bus, f"{prefix}.{unique}")
        return Cluster(self._bus, client, inbox)


def _charged_tokens(usage: Usage) -> int:
    return usage.prompt_tokens + usage.completion_tokens


def _describe(span: CallerSpan, call: CallerRequest, code: str, admitted: _Admitted | None) -> None:
    """Add to a span what was asked and answered, without its texts."""
    fields = admitted.fields if admitted is not None else call.fields
    span.attributes |= {
        gen_ai.OPERATION: gen_ai.operation_name(fields),
        gen_ai.PROVIDER: gen_ai.PROVIDER_NAME,
        gen_ai.REQUEST_MODEL: call.model,
        "mlx.outcome": code,
    }
    if session := fields.get("session_id"):
        span.attributes[gen_ai.CONVERSATION] = str(session)
    if admitted is not None and (usage := admitted.usage) is not None:
        span.attributes |= {
            gen_ai.INPUT_TOKENS: usage.prompt_tokens,
            gen_ai.CACHED_TOKENS: usage.cached_tokens,
            gen_ai.OUTPUT_TOKENS: usage.completion_tokens,
        }
    if admitted is not None and admitted.finish_reason is not None:
        span.attributes[gen_ai.FINISH_REASONS] = [admitted.finish_reason]
    if code not in ("ok", "client_gone"):
        span.error = code


def _priority(key: ApiKey, call: CallerRequest, model: str) -> Priority:
    """Return the priority of the request; without one medium, or the highest that the key allows.

    Raises:
        ClusterError: `not_allowed`: the key does not allow the model or the priority.
    """
    if key.models is not None and not {model, call.model} & set(key.models):
        raise ClusterError(
            f"model: this key is for {', '.join(key.models)}, not for {call.model}",
            code="not_allowed",
            param="model",
        )
    rank = PRIORITIES.index
    if call.priority is None:
        return max(_DEFAULT_PRIORITY, key.max_priority, key=rank)
    if rank(call.priority) < rank(key.max_priority):
        raise ClusterError(
            f"priority: this key allows {key.max_priority} at most",
            code="not_allowed",
            param="priority",
        )
    return call.priority
