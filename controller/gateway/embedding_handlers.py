"""Handlers of requests with texts to embed, to score or to rank."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp

from controller.gateway.endpoint import key_of, request_id_of
from controller.gateway.inference_client import CallerRequest, InferenceClient
from controller.gateway.model_resolver import ModelResolver
from controller.gateway.openai.embeddings import EmbeddingsRequest, embedding_list
from controller.gateway.scores import RerankRequest, ScoreRequest, ranking_body, score_list
from controller.gateway.text_requests import TextRequest
from controller.gateway.traced_app import span_of
from shared.client import Cluster, Ranking
from shared.ids import SkillName
from shared.messages.base import Priority, PriorityName, canonical_priority

_EMBED, _RERANK = SkillName("embed"), SkillName("rerank")
DEFAULT_TIMEOUT_MS = 86_400_000
"""The maximum: without a caller's `timeout_ms`, only `gateway.idle_timeout_ms` limits an answer."""

_E = TypeVar("_E", EmbeddingsRequest, RerankRequest, ScoreRequest)


class Parse(Protocol):
    """Reads and validates the body of a request."""

    async def __call__(self, request_type: type[_E], request: Request) -> _E: ...


Respond = Callable[
    [Request, CallerRequest, Callable[[], Awaitable[dict[str, Any]]]],
    ASGIApp,
]


class EmbeddingHandlers:
    """
    Args:
        respond: returns the response to a call, whose body the function returns.
    """

    def __init__(
        self,
        inference: InferenceClient,
        directory: ModelResolver,
        parse: Parse,
        respond: Respond,
    ) -> None:
        self._inference = inference
        self._directory = directory
        self._parse = parse
        self._respond = respond

    async def embeddings(self, request: Request) -> ASGIApp:
        body = await self._parse(EmbeddingsRequest, request)
        call = await self._call(request, body, _EMBED)
        packed = body.encoding_format == "base64"

        async def whole() -> dict[str, Any]:
            embeddings = await self._inference.encode(
                key_of(request), call, lambda cluster, fields: cluster.embed(body.input, **fields)
            )
            return await embedding_list(embeddings, call.model, packed=packed)

        return self._respond(request, call, whole)

    async def rerank(self, request: Request) -> ASGIApp:
        body = await self._parse(RerankRequest, request)
        call = await self._call(request, body, _RERANK)
        version = request.url.path[2]  # of /v1/rerank

        async def send(cluster: Cluster, fields: dict[str, Any]) -> Ranking:
            return await cluster.rerank(body.query, body.inputs, top_n=body.top_n, **fields)

        async def whole() -> dict[str, Any]:
            ranking = await self._inference.encode(key_of(request), call, send)
            return ranking_body(
                ranking, body, request_id=call.request_id, model=call.model, version=version
            )

        return self._respond(request, call, whole)

    async def score(self, request: Request) -> ASGIApp:
        body = await self._parse(ScoreRequest, request)
        call = await self._call(request, body, _RERANK)

        async def whole() -> dict[str, Any]:
            scores = await self._inference.encode(
                key_of(request),
                call,
                lambda cluster, fields: cluster.score(body.query, body.inputs, **fields),
            )
            return score_list(
                scores, request_id=call.request_id, model=call.model, created=int(time.time())
            )

        return self._respond(request, call, whole)

    async def _call(self, request: Request, body: TextRequest, skill: SkillName) -> CallerRequest:
        model = body.model or await self._directory.default_model(skill)
        fields = {"timeout_ms": DEFAULT_TIMEOUT_MS, **body.fields()}
        return CallerRequest(
            request_id_of(request), model, level_of(body.priority), fields, span_of(request.scope)
        )


def level_of(name: PriorityName | None) -> Priority | None:
    """Return the priority of a name; None for none."""
    return None if name is None else canonical_priority(name)
