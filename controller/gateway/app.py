"""The paths of the gateway, and what each does."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from controller.gateway.affinity import as_id, header_affinity
from controller.gateway.anthropic.answers import MessageFormat, TokenCountFormat
from controller.gateway.anthropic.requests import CountTokensRequest, MessagesRequest
from controller.gateway.api_keys import KeyRing
from controller.gateway.endpoint import (
    ErrorResponse,
    Handler,
    HttpEndpoint,
    RequestIdMiddleware,
    ShuttingDown,
    dialect_of,
    json_response,
    key_of,
    request_id_of,
)
from controller.gateway.inference_service import InferenceCall, InferenceService
from controller.gateway.metrics import GatewayMetrics
from controller.gateway.model_directory import ListedModel, ModelDirectory
from controller.gateway.openai.chat_answers import ChatFormat
from controller.gateway.openai.requests import ChatRequest, CompletionRequest
from controller.gateway.openai.text_answers import TextFormat
from controller.gateway.openapi import description
from controller.gateway.request_body import parse_body, read_body
from controller.gateway.responses.answers import ResponseObjectFormat
from controller.gateway.responses.paths import ResponsePaths, keeping
from controller.gateway.responses.requests import ResponsesRequest
from controller.gateway.responses.stored import ResponseStore
from controller.gateway.streaming_response import EventStreamFormat, ResponseFormat, StreamingAnswer
from controller.gateway.unknown_fields import HEADER as IGNORED_FIELDS_HEADER
from controller.gateway.unknown_fields import header_value
from shared.errors import ClusterError, RequestError
from shared.messages.priorities import Priority, PriorityName, canonical_priority
from shared.settings.gateway import GatewaySettings
from shared.version import VERSION

Body = ChatRequest | CompletionRequest | ResponsesRequest | MessagesRequest | CountTokensRequest
E = TypeVar(
    "E", ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest, CountTokensRequest
)

_EXPOSED_HEADERS = [
    "x-request-id", "request-id", "retry-after", "retry-after-ms", "x-should-retry",
    IGNORED_FIELDS_HEADER,
]  # fmt: skip
"""What a web page may read besides the body; the official clients obey those about retries."""
_LONGEST_MS = 86_400_000
"""What bounds an answer is `gateway.idle_timeout_ms`, where its caller names no `timeout_ms`."""


class App:
    """Builds the ASGI app.

    Attributes:
        draining: no new requests shall come; `/ready` says so.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        inference: InferenceService,
        directory: ModelDirectory,
        ring: KeyRing,
        metrics: GatewayMetrics,
        stored: ResponseStore,
    ) -> None:
        self._settings = settings
        self._stored = stored
        self._inference = inference
        self._directory = directory
        self._ring = ring
        self._metrics = metrics
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
        paths = ResponsePaths(self._stored)
        app = Starlette(
            routes=[
                self._route("/v1/chat/completions", self._chat, "POST"),
                self._route("/v1/completions", self._completions, "POST"),
                self._route("/v1/responses", self._responses, "POST"),
                self._route("/v1/responses/{id}", paths.one, "GET", "DELETE"),
                self._route("/v1/responses/{id}/input_items", paths.input_items, "GET"),
                self._route("/v1/models", self._models, "GET"),
                self._route("/v1/models/{name:path}", self._model, "GET"),
                self._route("/v1/messages", self._messages, "POST"),
                self._route("/v1/messages/count_tokens", self._count_tokens, "POST"),
                self._route("/metrics", self._metrics_text, "GET"),
                self._route("/openapi.json", self._openapi, "GET", open_to_all=True),
                self._route("/", self._root, "GET", open_to_all=True),
                self._route("/health", self._health, "GET", open_to_all=True),
                self._route("/ready", self._ready, "GET", open_to_all=True),
            ],
            middleware=middleware,
            exception_handlers={
                404: _no_such_path,  # type: ignore[dict-item]
                405: _no_such_method,  # type: ignore[dict-item]
                Exception: _fault,  # type: ignore[dict-item]
            },
        )
        app.router.redirect_slashes = False
        return RequestIdMiddleware(app)

    def _route(
        self, path: str, handler: Handler, *methods: str, open_to_all: bool = False
    ) -> Route:
        ring = None if open_to_all else self._ring
        return Route(path, HttpEndpoint(handler, ring, self._metrics), methods=methods)

    # Answers.

    async def _chat(self, request: Request) -> ASGIApp:
        body = await self._parsed(ChatRequest, request)
        body.refuse_unsupported()
        model = body.model or await self._directory.preferred()
        form = ChatFormat(
            request_id_of(request), model, choices=body.n or 1, include_usage=body.include_usage
        )
        return self._answer(request, body, model, form, form if body.streams else None)

    async def _completions(self, request: Request) -> ASGIApp:
        body = await self._parsed(CompletionRequest, request)
        body.refuse_unsupported()
        model = body.model or await self._directory.preferred()
        form = TextFormat(request_id_of(request), model, include_usage=body.include_usage)
        return self._answer(request, body, model, form, form if body.streams else None)

    async def _responses(self, request: Request) -> ASGIApp:
        asked = await self._parsed(ResponsesRequest, request)
        asked.refuse_unsupported()
        if self.draining:
            raise ShuttingDown()
        client, request_id = key_of(request).client, request_id_of(request)
        conversation = await self._stored.conversation(
            client, asked.previous_response_id, asked.items
        )
        body = asked.continued([*conversation.earlier, *conversation.own])
        model = body.model or await self._directory.preferred()
        keep = keeping(self._stored, client, request_id, asked, conversation)
        form = ResponseObjectFormat(request_id, model, asked, keep)
        return self._answer(request, body, model, form, form if body.streams else None)

    async def _messages(self, request: Request) -> ASGIApp:
        body = await self._parsed(MessagesRequest, request)
        body.refuse_unsupported()
        form = MessageFormat(request_id_of(request), body.model)
        return self._answer(request, body, body.model, form, form if body.streams else None)

    async def _count_tokens(self, request: Request) -> ASGIApp:
        body = await self._parsed(CountTokensRequest, request)
        body.refuse_unsupported()
        return self._answer(request, body, body.model, TokenCountFormat(), None)

    def _answer(
        self,
        request: Request,
        body: Body,
        model: str,
        form: ResponseFormat,
        events: EventStreamFormat | None,
    ) -> ASGIApp:
        if self.draining:
            raise ShuttingDown()
        fields = {"timeout_ms": _LONGEST_MS, **body.fields()}
        if body.session_id:
            fields |= {"session_id": as_id(body.session_id), "history": "sent"}
        elif affinity := header_affinity(request.headers) or body.affinity:
            fields["affinity"] = as_id(affinity)
        return StreamingAnswer(
            self._inference,
            key_of(request),
            InferenceCall(request_id_of(request), model, _priority(body.priority), fields),
            form,
            dialect_of(request.url.path),
            events=events,
            keep_alive_s=self._settings.keep_alive_ms / 1000,
            send_timeout_s=self._settings.send_timeout_ms / 1000,
        )

    async def _parsed(self, shape: type[E], request: Request) -> E:
        body = await read_body(
            request,
            max_bytes=self._settings.max_body_bytes,
            timeout_s=self._settings.body_timeout_ms / 1000,
        )
        ignore_unknown = self._settings.unknown_fields == "ignore"
        parsed, ignored = parse_body(shape, body, ignore_unknown=ignore_unknown)
        ignored += parsed.left_out
        if ignored:
            request.state.ignored_fields = header_value(ignored)
            self._metrics.ignored(key_of(request).client, len(ignored))
        return parsed

    # Models.

    async def _models(self, request: Request) -> ASGIApp:
        listed = list((await self._directory.listed(key_of(request).models)).values())
        if _is_anthropic(request):
            first, last = (listed[0].name, listed[-1].name) if listed else (None, None)
            body = {
                "data": [_anthropic_model(each) for each in listed],
                "has_more": False,
                "first_id": first,
                "last_id": last,
            }
            return json_response(body)
        return json_response({"object": "list", "data": [_openai_model(each) for each in listed]})

    async def _model(self, request: Request) -> ASGIApp:
        name = request.path_params["name"]
        found = (await self._directory.listed(key_of(request).models)).get(name)
        if found is None:
            raise RequestError(f"there is no model {name[:100]!r}", code="unknown_model")
        make = _anthropic_model if _is_anthropic(request) else _openai_model
        return json_response(make(found))

    # About the gateway.

    async def _root(self, request: Request) -> ASGIApp:
        return json_response(
            {"name": "MLX cluster gateway", "version": VERSION, "paths": "/openapi.json"}
        )

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
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _openapi(self, request: Request) -> ASGIApp:
        return json_response(
            description(keys=self._ring.asked_for, strict=self._settings.unknown_fields == "refuse")
        )


# Starlette calls what these return as the ASGI app that it is.
async def _no_such_path(request: Request, _: Exception) -> ASGIApp:
    error = RequestError(
        f"there is nothing at {request.url.path[:200]!r}; /openapi.json lists the paths",
        code="not_found",
    )
    return ErrorResponse(error, dialect_of(request.url.path))


async def _no_such_method(request: Request, error: Any) -> ASGIApp:
    taken = (error.headers or {}).get("Allow", "").split(", ")
    allowed = ", ".join(sorted(taken))  # Starlette's own has another order each time
    refused = RequestError(
        f"{request.url.path} takes {allowed}, not {request.method[:20]}", code="method_not_allowed"
    )
    return ErrorResponse(refused, dialect_of(request.url.path), {"allow": allowed})


async def _fault(request: Request, _: Exception) -> ASGIApp:
    error = ClusterError("a fault of the gateway's own; its log says more")
    return ErrorResponse(error, dialect_of(request.url.path))


def _priority(name: PriorityName | None) -> Priority | None:
    return None if name is None else canonical_priority(name)


def _is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _openai_model(listed: ListedModel) -> Mapping[str, Any]:
    model = {"id": listed.name, "object": "model", "created": listed.created, "owned_by": "cluster"}
    return model | _properties(listed)


def _anthropic_model(listed: ListedModel) -> Mapping[str, Any]:
    created = datetime.fromtimestamp(listed.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    model = {"type": "model", "id": listed.name, "display_name": listed.name, "created_at": created}
    return model | _properties(listed)


def _properties(listed: ListedModel) -> dict[str, Any]:
    """What neither API has a field for."""
    properties = {
        "context_length": listed.context_tokens,
        "skills": listed.skills,
        "abilities": listed.abilities,
        "batching": listed.batching,
        "batching_reason": listed.batching_reason,
    }
    return properties | ({"warnings": listed.warnings} if listed.warnings else {})
