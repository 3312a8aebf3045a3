"""The OpenAPI description, from the shapes that requests are checked against."""

from typing import Any

from pydantic.json_schema import models_json_schema

from controller.gateway.anthropic.requests import CountTokensRequest, MessagesRequest
from controller.gateway.openai.requests import ChatRequest, CompletionRequest
from controller.gateway.responses.requests import ResponsesRequest
from shared.external_model import ExternalModel
from shared.version import VERSION

_REFUSALS = {
    "400": "A field is wrong, or not supported yet.",
    "401": "No API key, or one that is not known here.",
    "403": "The API key does not allow it.",
    "404": "No such model.",
    "408": "The request did not come in whole in time.",
    "413": "The body is too large.",
    "415": "The body is neither plain nor gzip.",
    "431": "The head of the request is too large.",
    "429": "More than the API key allows; `retry-after` says when to come again.",
    "500": "A fault of the cluster's own.",
    "503": "Nobody can serve this now; `retry-after` says when to come again, where that is known.",
    "504": "`timeout_ms` passed.",
}
_REQUESTS: dict[str, tuple[type[ExternalModel], str]] = {
    "/v1/chat/completions": (ChatRequest, "OpenAI's chat completions."),
    "/v1/completions": (CompletionRequest, "OpenAI's plain completions."),
    "/v1/responses": (ResponsesRequest, "OpenAI's Responses."),
    "/v1/messages": (MessagesRequest, "Anthropic's messages."),
    "/v1/messages/count_tokens": (CountTokensRequest, "How many tokens a message would have."),
}
_ANYWHERE = ("400", "408", "431", "500", "503")
_QUERIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "/v1/models": ("The models, skills and aliases that may stand as `model`.", ("401",)),
    "/v1/models/{name}": ("One of them.", ("401", "404")),
    "/v1/responses/{id}": ("A response that is stored.", ("400", "401", "404")),
    "/v1/responses/{id}/input_items": (
        "What it was asked with, and all before it, by pages.",
        ("400", "401", "404"),
    ),
    "/": ("What this is; with HEAD whether it is there.", ()),
    "/health": ("The gateway runs.", ()),
    "/ready": ("The cluster answers and a worker is ready.", ()),
    "/metrics": ("Prometheus' text format.", ("401", "403")),
    "/openapi.json": ("This description.", ()),
}
"""What each is, and with which statuses it refuses besides those of all paths."""
_PARAMETERS: dict[str, tuple[str, dict[str, Any]]] = {
    "name": ("path", {"minLength": 1, "examples": ["chat"]}),
    "id": ("path", {"minLength": 1, "examples": ["resp_0123456789abcdef01234567"]}),
    "order": ("query", {"enum": ["asc", "desc"], "default": "desc"}),
    "limit": ("query", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
    "after": ("query", {"description": "The id of the item that the page comes after."}),
}
_STORED = "/v1/responses/{id}"
_OF_LISTS = ("order", "limit", "after")


def description(*, keys: bool, strict: bool) -> dict[str, Any]:
    """OpenAPI 3.1.

    Args:
        keys: whether an API key is asked for.
        strict: whether unknown fields are refused.
    """
    shapes = [(shape, "validation") for shape, _ in _REQUESTS.values()]
    _, schemas = models_json_schema(
        shapes,  # type: ignore[arg-type]
        ref_template="#/components/schemas/{model}",
    )
    if not strict:
        for schema in schemas["$defs"].values():
            schema.pop("additionalProperties", None)
    body: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "MLX cluster gateway", "version": VERSION},
        "paths": {path: {"post": _asking(path)} for path in _REQUESTS}
        | {path: {"get": _query(path)} for path in _QUERIES}
        | {_STORED: {"get": _query(_STORED), "delete": _query(_STORED)}},
        "components": {"schemas": schemas["$defs"]},
    }
    if keys:
        body["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        body["security"] = [{"bearer": []}, {"key": []}]
    return body


def _asking(path: str) -> dict[str, Any]:
    shape, summary = _REQUESTS[path]
    reference = {"$ref": f"#/components/schemas/{shape.__name__}"}
    answer = {"application/json": {"schema": {"type": "object"}}}
    events: dict[str, Any] = {"text/event-stream": {}}
    statuses = dict(_REFUSALS)
    if shape in (MessagesRequest, CountTokensRequest):
        statuses["529"] = "Overloaded; `retry-after` says when to come again."
    if shape is CountTokensRequest:
        events = {}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}},
        "responses": {"200": {"description": "The answer.", "content": answer | events}}
        | {status: {"description": text, "content": answer} for status, text in statuses.items()},
    }


def _query(path: str) -> dict[str, Any]:
    summary, refusals = _QUERIES[path]
    kind = "text/plain" if path == "/metrics" else "application/json"
    good = {"description": "The answer.", "content": {kind: {}}}
    bad = {
        status: {"description": _REFUSALS[status], "content": {"application/json": {}}}
        for status in sorted({*refusals, *_ANYWHERE})
    }
    query: dict[str, Any] = {"summary": summary, "responses": {"200": good, **bad}}
    names = [name for name in ("name", "id") if f"{{{name}}}" in path]
    if path.endswith("/input_items"):
        names += _OF_LISTS
    if names:
        query["parameters"] = [_parameter(name) for name in names]
    return query


def _parameter(name: str) -> dict[str, Any]:
    place, schema = _PARAMETERS[name]
    schema = {"type": "string", **schema}
    return {"name": name, "in": place, "required": place == "path", "schema": schema}
