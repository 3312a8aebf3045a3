"""What is asked of responses that are stored."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from controller.gateway.endpoint import key_of
from controller.gateway.responses.answers import Keep, unique_of
from controller.gateway.responses.requests import ResponsesRequest
from controller.gateway.responses.stored import StoredResponse, StoredResponses, as_stored
from shared.errors import InvalidRequest, RequestError
from shared.ids import ClientName, RequestId

_DEFAULT_LIMIT = 20
_MAX_LIMIT = 100


class ResponsePaths:
    """Their handlers."""

    def __init__(self, stored: StoredResponses) -> None:
        self._stored = stored

    async def one(self, request: Request) -> ASGIApp:
        """`GET` or `DELETE` one."""
        client, response_id = key_of(request).client, request.path_params["id"]
        if request.method == "DELETE":
            await self._stored.delete(client, response_id)
            return _json({"id": response_id, "object": "response", "deleted": True})
        if request.query_params.get("stream") == "true":
            raise RequestError(
                "stream: only a response in the background could be streamed later",
                code="not_supported",
                param="stream",
            )
        return _json((await self._stored.find(client, response_id)).response)

    async def input_items(self, request: Request) -> ASGIApp:
        """What one was asked with: the whole conversation, by pages."""
        client = key_of(request).client
        stored = await self._stored.find(client, request.path_params["id"])
        items = await self._stored.conversation(client, stored.parent) + stored.input
        return _json(page(items, request.query_params))


def keeping(
    stored: StoredResponses, client: ClientName, request_id: RequestId, asked: ResponsesRequest
) -> Keep | None:
    """Stores the response to a request; None where it is not to be, or cannot be."""
    if asked.store is False or not stored.available:
        return None
    return partial(_keep, stored, client, asked, as_stored(asked.items, unique_of(request_id)))


async def _keep(
    stored: StoredResponses,
    client: ClientName,
    asked: ResponsesRequest,
    items: list[dict[str, Any]],
    response: dict[str, Any],
) -> bool:
    told = {**response, "store": True}
    kept = StoredResponse(asked.previous_response_id, items, told)
    return await stored.keep(client, response["id"], kept)


def page(items: Sequence[dict[str, Any]], query: QueryParams) -> dict[str, Any]:
    """Some of the items, in the shape of OpenAI's lists.

    Raises:
        InvalidRequest: for what is asked of it.
    """
    order, limit = query.get("order", "desc"), query.get("limit", str(_DEFAULT_LIMIT))
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be `asc` or `desc`", param="order")
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= _MAX_LIMIT:
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


def _json(body: Any) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
