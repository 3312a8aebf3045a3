"""Handlers of the paths that list models, in OpenAI's and Anthropic's form."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from controller.gateway.endpoint import json_response, key_of
from controller.gateway.model_resolver import ListedModel, ModelResolver
from shared.errors import RequestError


class ModelHandlers:
    def __init__(self, directory: ModelResolver) -> None:
        self._directory = directory

    async def models(self, request: Request) -> ASGIApp:
        listed = list((await self._directory.list_models(key_of(request).models)).values())
        if _is_anthropic(request):
            first, last = (listed[0].name, listed[-1].name) if listed else (None, None)
            body = {
                "data": [_anthropic_model(model) for model in listed],
                "has_more": False,
                "first_id": first,
                "last_id": last,
            }
            return json_response(body)
        return json_response({"object": "list", "data": [_openai_model(model) for model in listed]})

    async def model(self, request: Request) -> ASGIApp:
        name = request.path_params["name"]
        model = (await self._directory.list_models(key_of(request).models)).get(name)
        if model is None:
            raise RequestError(f"model {name[:100]!r} not found", code="unknown_model")
        body = _anthropic_model(model) if _is_anthropic(request) else _openai_model(model)
        return json_response(body)


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
    """Return properties for which neither API has a field."""
    properties = {
        "context_length": listed.context_tokens,
        "skills": listed.skills,
        "abilities": listed.abilities,
        "batching": listed.batching,
        "batching_reason": listed.batching_reason,
    }
    return properties | ({"warnings": listed.warnings} if listed.warnings else {})
