"""The HTTP paths of the gateway and their handlers."""

from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from typing import Any, TypeVar

import orjson
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from controller.gateway.affinity import as_id, header_affinity
from controller.gateway.anthropic.answers import MessageSerializer, TokenCountSerializer
from controller.gateway.anthropic.requests import CountTokensRequest, MessagesRequest
from controller.gateway.api_keys import ApiKeyRing
from controller.gateway.embedding_handlers import DEFAULT_TIMEOUT_MS, EmbeddingHandlers, level_of
from controller.gateway.endpoint import (
    EndpointApp,
    ErrorResponseApp,
    Handler,
    RequestIdMiddleware,
    ShuttingDown,
    dialect_of,
    json_response,
    key_of,
    peer_of,
    request_id_of,
)
from controller.gateway.inference_client import CallerRequest, InferenceClient
from controller.gateway.live.handlers import LiveHandlers
from controller.gateway.live.rights import check_on_this_machine
from controller.gateway.metrics import GatewayMetrics
from controller.gateway.model_handlers import ModelHandlers
from controller.gateway.model_resolver import ModelResolver
from controller.gateway.openai.chat_answers import ChatCompletionSerializer
from controller.gateway.openai.embeddings import EmbeddingsRequest
from controller.gateway.openai.requests import ChatRequest, CompletionRequest
from controller.gateway.openai.text_answers import TextCompletionSerializer
from controller.gateway.openapi import openapi_document
from controller.gateway.page.assets import INDEX, PageAssets, wants_page
from controller.gateway.page_guard import PageGuard
from controller.gateway.rate_limiter import ClientRateLimiter
from controller.gateway.request_body import HEADER as IGNORED_FIELDS_HEADER
from controller.gateway.request_body import header_value, parse_body, read_body
from controller.gateway.responses.answers import ResponseObjectSerializer
from controller.gateway.responses.requests import ResponsesRequest
from controller.gateway.responses.stored import ResponseStore
from controller.gateway.responses.stored_handlers import ResponseTurn, StoredResponseHandlers
from controller.gateway.scores import RerankRequest, ScoreRequest
from controller.gateway.streaming_response import (
    EventStreamSerializer,
    InferenceResponse,
    ResponseSerializer,
)
from controller.gateway.traced_app import TracedApp, span_of
from shared.errors import ClusterError, RequestError
from shared.settings.gateway import GatewaySettings
from shared.telemetry import Tracer
from shared.version import VERSION

Body = ChatRequest | CompletionRequest | ResponsesRequest | MessagesRequest | CountTokensRequest
E = TypeVar(
    "E", ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest, CountTokensRequest,
    EmbeddingsRequest, RerankRequest, ScoreRequest,
)  # fmt: skip

_EXPOSED_HEADERS = [
    "x-request-id", "request-id", "retry-after", "retry-after-ms", "x-should-retry",
    IGNORED_FIELDS_HEADER,
]  # fmt: skip
"""Response headers that a web page may read. The official clients obey those about retries."""


class GatewayApp:
    """Builds the ASGI app.

    Attributes:
        draining: whether the gateway rejects new requests; `/ready` then returns an error.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        inference: InferenceClient,
        directory: ModelResolver,
        quotas: ClientRateLimiter,
        ring: ApiKeyRing,
        metrics: GatewayMetrics,
        response_store: ResponseStore,
        live: LiveHandlers,
        tracer: Tracer | None = None,
    ) -> None:
        self._settings = settings
        self._live = live
        self._assets = PageAssets()
        self._response_store = response_store
        self._inference = inference
        self._directory = directory
        self._quotas = quotas
        self._ring = ring
        self._guard = None if ring.requires_key else PageGuard(settings)
        self._metrics = metrics
        self._tracer = tracer
        self.draining = False

    def build(self) -> ASGIApp:
        middleware = []
        if self._settings.cors_origins:
            middleware.append(
                Middleware(
                    CORSMiddleware,
                    allow_origins=self._settings.cors_origins,
                    allow_methods=["GET", "POST", "DELETE"],
                    allow_headers=["*"],
                    expose_headers=_EXPOSED_HEADERS,
                    allow_private_network=True,
                )
            )
        stored = StoredResponseHandlers(self._response_store, self._quotas)
        models = ModelHandlers(self._directory)
        encoders = EmbeddingHandlers(self._inference, self._directory, self._parse, self._response)
        app = Starlette(
            routes=[
                self._route("/v1/chat/completions", self._chat, "POST"),
                self._route("/v1/completions", self._completions, "POST"),
                self._route("/v1/embeddings", encoders.embeddings, "POST"),
                self._route("/v1/rerank", encoders.rerank, "POST"),
                self._route("/v2/rerank", encoders.rerank, "POST"),
                self._route("/v1/score", encoders.score, "POST"),
                self._route("/v1/responses", self._responses, "POST"),
                self._route("/v1/responses/{id}", stored.response, "GET", "DELETE"),
                self._route("/v1/responses/{id}/input_items", stored.input_items, "GET"),
                self._route("/v1/models", models.models, "GET"),
                self._route("/v1/models/{name:path}", models.model, "GET"),
                self._route("/v1/messages", self._messages, "POST"),
                self._route("/v1/messages/count_tokens", self._count_tokens, "POST"),
                self._route("/metrics", self._metrics_text, "GET"),
                self._route("/openapi.json", self._openapi, "GET", public=True),
                self._route("/cluster/events", self._live.events, "GET", public=True),
                self._route("/cluster/orders", self._live.order, "POST", public=True),
                self._route("/", self._root, "GET", public=True),
                self._route("/ui", self._page, "GET", public=True),
                self._route("/ui/{file:path}", self._page_file, "GET", public=True),
                self._route("/health", self._health, "GET", public=True, guarded=False),
                self._route("/ready", self._ready, "GET", public=True, guarded=False),
            ],
            middleware=middleware,
            exception_handlers={
                404: _not_found,  # type: ignore[dict-item]
                405: _method_not_allowed,  # type: ignore[dict-item]
                Exception: _internal_error,  # type: ignore[dict-item]
            },
        )
        app.router.redirect_slashes = False
        return RequestIdMiddleware(app)

    def _route(
        self,
        path: str,
        handler: Handler,
        *methods: str,
        public: bool = False,
        guarded: bool = True,
    ) -> Route:
        ring = None if public else self._ring
        app: ASGIApp = EndpointApp(handler, ring, self._guard if guarded else None, self._metrics)
        if self._tracer is not None and "POST" in methods:
            app = TracedApp(app, path, self._tracer)
        return Route(path, app, methods=methods)

    # Inference.

    async def _chat(self, request: Request) -> ASGIApp:
        body = await self._parse(ChatRequest, request)
        body.refuse_unsupported()
        model = body.model or await self._directory.default_model()
        answer_format = ChatCompletionSerializer(
            request_id_of(request), model, choices=body.n or 1, include_usage=body.include_usage
        )
        return self._answer(
            request, body, model, answer_format, answer_format if body.streams else None
        )

    async def _completions(self, request: Request) -> ASGIApp:
        body = await self._parse(CompletionRequest, request)
        body.refuse_unsupported()
        model = body.model or await self._directory.default_model()
        answer_format = TextCompletionSerializer(
            request_id_of(request), model, include_usage=body.include_usage
        )
        return self._answer(
            request, body, model, answer_format, answer_format if body.streams else None
        )

    async def _responses(self, request: Request) -> ASGIApp:
        new_turn = await self._parse(ResponsesRequest, request)
        new_turn.refuse_unsupported()
        model = new_turn.model or await self._directory.default_model()
        request_id = request_id_of(request)
        turn = ResponseTurn(self._response_store, key_of(request).client, request_id, new_turn)
        answer_format = ResponseObjectSerializer(request_id, model, new_turn, turn.store_callback)

        async def prepare() -> dict[str, Any]:
            return self._fields(request, await turn.with_conversation())

        return self._answer(
            request,
            new_turn,
            model,
            answer_format,
            answer_format if new_turn.streams else None,
            prepare=prepare,
        )

    async def _messages(self, request: Request) -> ASGIApp:
        body = await self._parse(MessagesRequest, request)
        body.refuse_unsupported()
        answer_format = MessageSerializer(request_id_of(request), body.model)
        return self._answer(
            request, body, body.model, answer_format, answer_format if body.streams else None
        )

    async def _count_tokens(self, request: Request) -> ASGIApp:
        body = await self._parse(CountTokensRequest, request)
        body.refuse_unsupported()
        return self._answer(request, body, body.model, TokenCountSerializer(), None)

    def _answer(
        self,
        request: Request,
        body: Body,
        model: str,
        answer_format: ResponseSerializer,
        events: EventStreamSerializer | None,
        *,
        prepare: Callable[[], Awaitable[dict[str, Any]]] | None = None,
    ) -> ASGIApp:
        """
        Args:
            prepare: returns the fields of the request, as `_fields` does, when it is admitted; None
                if those of `body` are all.
        """
        key = key_of(request)
        call = CallerRequest(
            request_id_of(request),
            model,
            level_of(body.priority),
            {"messages": []} if prepare is not None else self._fields(request, body),
            span_of(request.scope),
            prepare,
        )
        whole = partial(self._inference.complete, key, call, answer_format.whole)
        return self._response(request, call, whole, events)

    def _fields(self, request: Request, body: Body) -> dict[str, Any]:
        """Return the fields of the cluster's request."""
        fields = {"timeout_ms": DEFAULT_TIMEOUT_MS, **body.fields()}
        if body.session_id:
            fields |= {"session_id": as_id(body.session_id), "history": "sent"}
        elif affinity := header_affinity(request.headers) or body.affinity:
            fields["affinity"] = as_id(affinity)
        return fields

    def _response(
        self,
        request: Request,
        call: CallerRequest,
        whole: Callable[[], Awaitable[dict[str, Any]]],
        events: EventStreamSerializer | None = None,
    ) -> ASGIApp:
        if self.draining:
            raise ShuttingDown()
        return InferenceResponse(
            self._inference,
            key_of(request),
            call,
            whole,
            dialect_of(request.url.path),
            events=events,
            keep_alive_s=self._settings.keep_alive_ms / 1000,
            send_timeout_s=self._settings.send_timeout_ms / 1000,
        )

    async def _parse(self, request_type: type[E], request: Request) -> E:
        """Read and validate the body, and report the fields that are ignored."""
        body = await read_body(
            request,
            max_bytes=self._settings.max_body_bytes,
            timeout_s=self._settings.body_timeout_ms / 1000,
        )
        ignore_unknown = self._settings.unknown_fields == "ignore"
        parsed, ignored = parse_body(request_type, body, ignore_unknown=ignore_unknown)
        ignored += parsed.ignored_tools
        if ignored:
            request.state.ignored_fields = header_value(ignored)
            self._metrics.fields_ignored(key_of(request).client, len(ignored))
        return parsed

    # About the gateway.

    async def _root(self, request: Request) -> ASGIApp:
        if wants_page(request.headers.get("accept", "")):
            return await self._page(request)
        response = json_response(
            {"name": "MLX cluster gateway", "version": VERSION, "paths": "/openapi.json"}
        )
        response.headers["vary"] = "accept"
        return response

    async def _page(self, request: Request) -> ASGIApp:
        return self._assets.response(request, INDEX)

    async def _page_file(self, request: Request) -> ASGIApp:
        return self._assets.response(request, request.path_params["file"])

    async def _health(self, request: Request) -> ASGIApp:
        return json_response({"status": "ok"})

    async def _ready(self, request: Request) -> ASGIApp:
        unavailability = self._directory.unavailability
        if self.draining:
            unavailability = ShuttingDown()
        if unavailability is not None:
            raise unavailability
        return json_response({"status": "ready"})

    async def _metrics_text(self, request: Request) -> ASGIApp:
        if not key_of(request).admin:
            raise ClusterError("metrics need a key with `admin: true`", code="not_allowed")
        if not self._ring.requires_key and not self._settings.anonymous_metrics:
            check_on_this_machine(request.headers, peer_of(request))
        text, content_type = self._metrics.text(request.headers.get("accept", ""))
        return Response(text, media_type=content_type)

    async def _openapi(self, request: Request) -> ASGIApp:
        return Response(self._openapi_json, media_type="application/json")

    @cached_property
    def _openapi_json(self) -> bytes:
        """Made once: it takes some 40 ms, and nobody needs a key to ask for it."""
        return orjson.dumps(
            openapi_document(
                keys=self._ring.requires_key, strict=self._settings.unknown_fields == "refuse"
            )
        )


# Starlette calls the results of these handlers as ASGI apps.
async def _not_found(request: Request, _: Exception) -> ASGIApp:
    error = RequestError(
        f"no such path: {request.url.path[:200]!r}; /openapi.json lists the paths",
        code="not_found",
    )
    return ErrorResponseApp(error, dialect_of(request.url.path))


async def _method_not_allowed(request: Request, error: Any) -> ASGIApp:
    methods = (error.headers or {}).get("Allow", "").split(", ")
    allowed = ", ".join(sorted(methods))  # Starlette's order differs from response to response
    not_allowed = RequestError(
        f"{request.url.path} allows {allowed}, not {request.method[:20]}",
        code="method_not_allowed",
    )
    return ErrorResponseApp(not_allowed, dialect_of(request.url.path), {"allow": allowed})


async def _internal_error(request: Request, _: Exception) -> ASGIApp:
    error = ClusterError("internal error of the gateway; its log has the details")
    return ErrorResponseApp(error, dialect_of(request.url.path))
