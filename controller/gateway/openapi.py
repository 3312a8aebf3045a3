"""The OpenAPI document, generated from the pydantic models that validate requests."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from controller.gateway.anthropic.requests import CountTokensRequest, MessagesRequest
from controller.gateway.live.orders import OrderBody
from controller.gateway.live.rights import VIEWS
from controller.gateway.openai.embeddings import EmbeddingsRequest
from controller.gateway.openai.requests import ChatRequest, CompletionRequest
from controller.gateway.responses.requests import ResponsesRequest
from controller.gateway.scores import RerankRequest, ScoreRequest
from shared.version import VERSION

_ERRORS = {
    "400": "A field is invalid, or not supported.",
    "401": "The API key is missing or unknown.",
    "403": "The API key does not allow the request.",
    "404": "Not found.",
    "408": "The request was not complete in time.",
    "413": "The body is too large.",
    "415": "The body is neither plain nor gzip.",
    "431": "The head of the request is too large.",
    "429": "Over the limits of the API key; `retry-after` says when to retry.",
    "500": "An internal error of the cluster.",
    "503": "No worker can serve the request now; `retry-after` says when to retry, if known.",
    "504": "`timeout_ms` passed.",
}
_POST_PATHS: dict[str, tuple[type[BaseModel], str]] = {
    "/v1/chat/completions": (ChatRequest, "OpenAI's Chat Completions."),
    "/v1/completions": (CompletionRequest, "OpenAI's Completions."),
    "/v1/embeddings": (EmbeddingsRequest, "OpenAI's Embeddings."),
    "/v1/rerank": (RerankRequest, "Ranks documents, in the form of Cohere's and Jina's APIs."),
    "/v2/rerank": (RerankRequest, "The same."),
    "/v1/score": (ScoreRequest, "Scores pairs of texts, in the form of vLLM's API."),
    "/v1/responses": (ResponsesRequest, "OpenAI's Responses."),
    "/v1/messages": (MessagesRequest, "Anthropic's Messages."),
    "/v1/messages/count_tokens": (CountTokensRequest, "Counts the input tokens of a message."),
    "/cluster/orders": (OrderBody, "An order: cancel a request, load a model, pause a roll-out."),
}
_ERRORS_OF_ALL_PATHS = ("400", "408", "431", "500", "503")
_GET_PATHS: dict[str, tuple[str, tuple[str, ...]]] = {
    "/v1/models": ("The models, skills and aliases that requests may name as `model`.", ("401",)),
    "/v1/models/{name}": ("One model, skill or alias.", ("401", "404")),
    "/v1/responses/{id}": ("A stored response.", ("400", "401", "404")),
    "/v1/responses/{id}/input_items": (
        "All input items of a stored response and of the responses before it, in pages.",
        ("400", "401", "404"),
    ),
    "/cluster/events": (
        "The state of the cluster as server-sent events, at most one a second and view.",
        ("401", "403"),
    ),
    "/": ("The name and version of the gateway; for browsers the page.", ()),
    "/ui": ("The page.", ()),
    "/ui/{file}": ("A file of the page.", ("404",)),
    "/health": ("Whether the gateway runs.", ()),
    "/ready": ("Whether the cluster answers and a worker is ready or starting.", ()),
    "/metrics": ("Metrics in Prometheus' text format.", ("401", "403")),
    "/openapi.json": ("This document.", ()),
}
"""Summary and error statuses of each path, besides the statuses that all paths have."""
_CONTENT_TYPES = {
    "/metrics": ["text/plain"],
    "/cluster/events": ["text/event-stream"],
    "/": ["application/json", "text/html"],
    "/ui": ["text/html"],
    "/ui/{file}": ["text/html", "text/css", "text/javascript", "image/svg+xml"],
}
"""Of the answers of GET; JSON, if not here."""
_PARAMETERS: dict[str, tuple[str, dict[str, Any]]] = {
    "name": ("path", {"minLength": 1, "examples": ["chat"]}),
    "file": ("path", {"minLength": 1, "examples": ["style.css"]}),
    "views": ("query", {"description": f"Of {', '.join(VIEWS)}, with commas; by default all."}),
    "id": ("path", {"minLength": 1, "examples": ["resp_0123456789abcdef01234567"]}),
    "order": ("query", {"enum": ["asc", "desc"], "default": "desc"}),
    "limit": ("query", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
    "after": ("query", {"description": "Return items after the item with this id."}),
}
_RESPONSE_PATH = "/v1/responses/{id}"
_PAGE_PARAMETERS = ("order", "limit", "after")


def openapi_document(*, keys: bool, strict: bool) -> dict[str, Any]:
    """Return an OpenAPI 3.1 document.

    Args:
        keys: whether requests need an API key.
        strict: whether unknown fields are refused.
    """
    models = [(request_type, "validation") for request_type, _ in _POST_PATHS.values()]
    _, schemas = models_json_schema(
        models,  # type: ignore[arg-type]
        ref_template="#/components/schemas/{model}",
    )
    if not strict:
        for schema in schemas["$defs"].values():
            schema.pop("additionalProperties", None)
    body: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "MLX cluster gateway", "version": VERSION},
        "paths": {path: {"post": _post_operation(path)} for path in _POST_PATHS}
        | {path: {"get": _query_operation(path)} for path in _GET_PATHS}
        | {
            _RESPONSE_PATH: {
                "get": _query_operation(_RESPONSE_PATH),
                "delete": _query_operation(_RESPONSE_PATH),
            }
        },
        "components": {"schemas": schemas["$defs"]},
    }
    if keys:
        body["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        body["security"] = [{"bearer": []}, {"key": []}]
    return body


def _post_operation(path: str) -> dict[str, Any]:
    request_type, summary = _POST_PATHS[path]
    reference = {"$ref": f"#/components/schemas/{request_type.__name__}"}
    answer = {"application/json": {"schema": {"type": "object"}}}
    events: dict[str, Any] = {"text/event-stream": {}}
    errors = dict(_ERRORS)
    if request_type in (MessagesRequest, CountTokensRequest):
        errors["529"] = "Overloaded; `retry-after` says when to retry."
    if request_type in (CountTokensRequest, OrderBody):
        events = {}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}},
        "responses": {"200": {"description": "The answer.", "content": answer | events}}
        | {status: {"description": text, "content": answer} for status, text in errors.items()},
    }


def _query_operation(path: str) -> dict[str, Any]:
    """Return the operation of GET or DELETE."""
    summary, statuses = _GET_PATHS[path]
    kinds = _CONTENT_TYPES.get(path, ["application/json"])
    success = {"description": "The answer.", "content": {kind: {} for kind in kinds}}
    errors = {
        status: {"description": _ERRORS[status], "content": {"application/json": {}}}
        for status in sorted({*statuses, *_ERRORS_OF_ALL_PATHS})
    }
    operation: dict[str, Any] = {"summary": summary, "responses": {"200": success, **errors}}
    names = [name for name in ("name", "id", "file") if f"{{{name}}}" in path]
    if path.endswith("/input_items"):
        names += _PAGE_PARAMETERS
    if path == "/cluster/events":
        names.append("views")
    if names:
        operation["parameters"] = [_parameter(name) for name in names]
    return operation


def _parameter(name: str) -> dict[str, Any]:
    location, schema = _PARAMETERS[name]
    schema = {"type": "string", **schema}
    return {"name": name, "in": location, "required": location == "path", "schema": schema}
