"""Responses that are stored: each is what it adds to the one before it, and says which that is."""

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import TypeAdapter

from controller.gateway.responses.items import Item, ReferenceItem, listed_item
from shared.bus import ObjectStore
from shared.errors import BusError, ClusterError, RequestError, StoreFull, Unavailable
from shared.ids import ClientName
from shared.messages.edge import Edge

logger = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_AFTER_FAILURE_S = 10.0
_RESPONSE_ID = re.compile(r"resp_[0-9a-f]{24}")
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{24})_i?[0-9]+")
_ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """
    Attributes:
        parent: the id of the response before it.
        input: the items that it was asked with, beyond those before it.
        response: as its client was told it.
    """

    parent: str | None
    input: list[dict[str, Any]]
    response: dict[str, Any]

    @property
    def items(self) -> list[dict[str, Any]]:
        """What it adds to a conversation."""
        return [*self.input, *self.response["output"]]

    def encode(self) -> bytes:
        return orjson.dumps(self)

    @staticmethod
    def decode(data: bytes) -> "StoredResponse":
        return StoredResponse(**orjson.loads(data))


class StoredResponses:
    """Those of all clients; each sees its own.

    Args:
        store: None where nothing is stored.
        max_bytes: of a conversation's items, as a body that had them all.
    """

    def __init__(self, store: ObjectStore | None, max_bytes: int) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._failed_at: float | None = None

    @property
    def available(self) -> bool:
        """Whether to try: after a failure it takes a while."""
        failed_at = self._failed_at
        has_failed = failed_at is not None and time.monotonic() - failed_at < _AFTER_FAILURE_S
        return self._store is not None and not has_failed

    async def keep(self, client: ClientName, response_id: str, stored: StoredResponse) -> bool:
        """Store one; returns whether it is."""
        if self._store is None or not self.available:
            return False
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._store.put(_name(client, response_id), stored.encode())
        except (BusError, TimeoutError) as error:
            logger.warning("a response is not stored: %s", error or "no answer in time")
            if not isinstance(error, StoreFull):
                self._failed_at = time.monotonic()
            return False
        return True

    async def find(self, client: ClientName, response_id: str) -> StoredResponse:
        """A client's own.

        Raises:
            RequestError: `not_found`.
            Unavailable: what is stored cannot be read now.
        """
        if self._store is not None and _RESPONSE_ID.fullmatch(response_id):
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    data = await self._store.get(_name(client, response_id))
            except (BusError, TimeoutError) as error:
                raise _unreadable(error) from None
            if data is not None:
                return StoredResponse.decode(data)
        raise RequestError(
            f"response {response_id[:100]!r} not found: kept are those that say `store: true`, "
            "each for its own API key, for a while",
            code="not_found",
        )

    async def delete(self, client: ClientName, response_id: str) -> None:
        """Raises: as `find`."""
        await self.find(client, response_id)
        assert self._store is not None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._store.delete(_name(client, response_id))
        except (BusError, TimeoutError) as error:
            raise _unreadable(error) from None

    async def conversation(self, client: ClientName, last: str | None) -> list[dict[str, Any]]:
        """The items of a response and of all before it, from the first one on.

        Raises:
            RequestError: as `find`; or `payload_too_large`.
            Unavailable: as `find`.
        """
        found: list[list[dict[str, Any]]] = []
        size = 0
        while last is not None:
            stored = await self.find(client, last)
            size += len(orjson.dumps(stored.items))
            if size > self._max_bytes:
                raise RequestError(
                    f"the conversation has more than {self._max_bytes} bytes",
                    code="payload_too_large",
                )
            found.append(stored.items)
            last = stored.parent
        return [item for items in reversed(found) for item in items]

    async def with_earlier(
        self, client: ClientName, last: str | None, items: Sequence[Edge]
    ) -> list[Item]:
        """A request's items behind those of the response it goes on from, and what it refers to
        in their places.

        Raises:
            RequestError: as `conversation`; `param` names what is not found.
            Unavailable: as `find`.
        """
        try:
            earlier = await self.conversation(client, last)
        except RequestError as error:
            raise _at("previous_response_id", error) from None
        known = {item["id"]: item for item in earlier}
        found: list[Edge | dict[str, Any]] = []
        for place, item in enumerate(items):
            if isinstance(item, ReferenceItem):
                try:
                    known |= await self._fellows(client, item.id, known)
                except RequestError as error:
                    raise _at(f"input.{place}.id", error) from None
                found.append(known[item.id])
            else:
                found.append(item)
        return _ITEMS.validate_python([*earlier, *found])

    async def _fellows(
        self, client: ClientName, item_id: str, known: dict[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """The items of the response that an item is of, by id.

        Raises: as `find`.
        """
        if item_id in known:
            return {}
        if (named := _ITEM_ID.fullmatch(item_id)) is not None:
            stored = await self.find(client, f"resp_{named[1]}")
            fellows = {item["id"]: item for item in stored.items}
            if item_id in fellows:
                return fellows
        raise RequestError(f"item {item_id[:100]!r} not found", code="not_found")


def as_stored(items: Sequence[Edge], unique: str) -> list[dict[str, Any]]:
    """A request's items as they are stored and listed.

    Args:
        unique: makes the ids of those that have none, with their number.
    """
    return [listed_item(item, f"{unique}_i{number}") for number, item in enumerate(items)]


def _name(client: ClientName, response_id: str) -> str:
    return f"{client}/{response_id}"


def _at(param: str, error: ClusterError) -> RequestError:
    return RequestError(error.message, code=error.code, param=param)


def _unreadable(error: Exception) -> Unavailable:
    logger.warning("what is stored cannot be read: %s", error or "no answer in time")
    return Unavailable(
        "what is stored cannot be read now", code="store_unavailable", retry_after_ms=1000
    )
