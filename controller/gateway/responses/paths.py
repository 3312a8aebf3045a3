"""What is asked of responses that are stored."""

import re
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.types import ASGIApp

from controller.gateway.endpoint import json_response, key_of
from controller.gateway.responses.answers import Keep, unique_of
from controller.gateway.responses.listed import listed, without_extras
from controller.gateway.responses.requests import ResponsesRequest
from controller.gateway.responses.stored import ResponseStore, StoredConversation, StoredTurn
from shared.errors import InvalidRequest, RequestError
from shared.ids import ClientName, RequestId

_DEFAULT_LIMIT = 20
_MAX_LIMIT = 100


class ResponsePaths:
    """Their handlers."""

    def __init__(self, stored: ResponseStore) -> None:
        self._stored = stored

    async def one(self, request: Request) -> ASGIApp:
        """`GET` or `DELETE` one."""
        client, response_id = key_of(request).client, request.path_params["id"]
        if request.method == "DELETE":
            await self._stored.delete(client, response_id)
            return json_response({"id": response_id, "object": "response", "deleted": True})
        if request.query_params.get("stream") == "true":
            raise RequestError(
                "stream: only a response in the background could be streamed later",
                code="not_supported",
                param="stream",
            )
        return json_response(await self._stored.find(client, response_id))

    async def input_items(self, request: Request) -> ASGIApp:
        """What one was asked with: the whole conversation, by pages."""
        items = await self._stored.input_of(key_of(request).client, request.path_params["id"])
        return json_response(page(items, request.query_params))


def keeping(
    stored: ResponseStore,
    client: ClientName,
    request_id: RequestId,
    asked: ResponsesRequest,
    conversation: StoredConversation,
) -> Keep | None:
    """Stores the response to a request; None where it is not to be, or cannot be."""
    if asked.store is False or not stored.available:
        return None
    items = listed(conversation.own, unique_of(request_id), conversation.known)

    async def keep(response: dict[str, Any]) -> bool:
        output = [without_extras(item) for item in response["output"]]
        turn = StoredTurn(conversation.before, items, output)
        return await stored.keep(client, {**response, "store": True}, turn)

    return keep


def page(items: Sequence[dict[str, Any]], query: QueryParams) -> dict[str, Any]:
    """Some of the items, in the shape of OpenAI's lists.

    Raises:
        InvalidRequest: for what is asked of it.
    """
    order, limit = query.get("order", "desc"), query.get("limit", str(_DEFAULT_LIMIT))
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be `asc` or `desc`", param="order")
    if not re.fullmatch(r"[0-9]{1,9}", limit) or not 1 <= int(limit) <= _MAX_LIMIT:
        raise InvalidRequest(f"limit must be from 1 to {_MAX_LIMIT}", param="limit")
    ordered = list(items if order == "asc" else reversed(items))
    if (after := query.get("after")) is not None:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise InvalidRequest("after must be the id of an item", param="after")
        ordered = ordered[ids.index(after) + 1 :]
    shown = ordered[: int(limit)]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else "",
        "last_id": shown[-1]["id"] if shown else "",
        "has_more": len(ordered) > len(shown),
    }
