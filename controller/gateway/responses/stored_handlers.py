"""Handlers of the paths of stored responses."""

import re
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.types import ASGIApp

from controller.gateway.endpoint import json_response, key_of
from controller.gateway.rate_limiter import ClientRateLimiter
from controller.gateway.responses.answers import StoreCallback, unique_part
from controller.gateway.responses.requests import ResponsesRequest
from controller.gateway.responses.stored import ResolvedConversation, ResponseStore, StoredTurn
from controller.gateway.responses.stored_items import stored_input, stored_output
from shared.errors import InvalidRequest, RequestError
from shared.ids import ClientName, RequestId

_DEFAULT_LIMIT = 20
_MAX_LIMIT = 100


class StoredResponseHandlers:
    """Handlers whose requests count towards the limits of their keys: they read whole
    conversations."""

    def __init__(self, store: ResponseStore, quotas: ClientRateLimiter) -> None:
        self._store = store
        self._quotas = quotas

    async def response(self, request: Request) -> ASGIApp:
        """Handle `GET` and `DELETE` of a stored response."""
        client, response_id = key_of(request).client, request.path_params["id"]
        if request.query_params.get("stream") == "true" and request.method != "DELETE":
            raise RequestError(
                "stream: only background responses can be streamed later",
                code="not_supported",
                param="stream",
            )
        async with self._quotas.admit(key_of(request)):
            if request.method == "DELETE":
                await self._store.delete(client, response_id)
                return json_response({"id": response_id, "object": "response", "deleted": True})
            return json_response(await self._store.find(client, response_id))

    async def input_items(self, request: Request) -> ASGIApp:
        """List the input items of a response, including those of all responses before it."""
        async with self._quotas.admit(key_of(request)):
            items = await self._store.input_items(key_of(request).client, request.path_params["id"])
        return json_response(page(items, request.query_params))


class ResponseTurn:
    """One request of the Responses API, and the stored conversation that it continues."""

    def __init__(
        self,
        store: ResponseStore,
        client: ClientName,
        request_id: RequestId,
        request: ResponsesRequest,
    ) -> None:
        self._store = store
        self._client = client
        self._request_id = request_id
        self._request = request
        self._conversation = ResolvedConversation()

    @property
    def store_callback(self) -> StoreCallback | None:
        """A function that stores the response; None if the request has `store: false`, or the store
        is unavailable."""
        if self._request.store is False or not self._store.available:
            return None
        return self._store_response

    async def with_conversation(self) -> ResponsesRequest:
        """Read the conversation, and return the request with all of its items.

        Raises: as `ResponseStore.conversation`.
        """
        request = self._request
        self._conversation = conversation = await self._store.conversation(
            self._client, request.previous_response_id, request.items
        )
        return request.with_input([*conversation.previous_items, *conversation.new_items])

    async def _store_response(self, response: dict[str, Any]) -> bool:
        conversation = self._conversation
        items = stored_input(
            conversation.new_items, unique_part(self._request_id), conversation.previous_item_ids
        )
        output = [stored_output(item) for item in response["output"]]
        turn = StoredTurn(conversation.previous_ids, items, output)
        return await self._store.put(self._client, {**response, "store": True}, turn)


def page(items: Sequence[dict[str, Any]], query: QueryParams) -> dict[str, Any]:
    """Return a page of the items as an OpenAI list.

    Raises:
        InvalidRequest: `order`, `limit` or `after` is invalid.
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
    page_items = ordered[: int(limit)]
    return {
        "object": "list",
        "data": page_items,
        "first_id": page_items[0]["id"] if page_items else "",
        "last_id": page_items[-1]["id"] if page_items else "",
        "has_more": len(ordered) > len(page_items),
    }
