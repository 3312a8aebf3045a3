"""The store of responses: each response as it was sent, and separately the items that it adds to
the conversation."""

import asyncio
import logging
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, TypeAdapter, ValidationError

from controller.gateway.metrics import GatewayMetrics
from controller.gateway.responses.client_shares import ClientShares
from controller.gateway.responses.items import Item, ReferenceItem
from shared.bus import ObjectStore
from shared.codec import StrictInput, decode_object
from shared.errors import (
    BusError,
    ClusterError,
    DecodeError,
    JetStreamFull,
    RequestError,
    Unavailable,
)
from shared.ids import ClientName

logger = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_DELETES_AT_ONCE = 16
_PAUSE_AFTER_FAILURE_S = 10.0
_CONCURRENT_READS = 8
_MAX_TURNS = 1000
"""Stored responses that are read for one request, at most."""
_RESPONSE, _TURN_ITEMS = "response", "items"
_RESPONSE_ID = re.compile(r"resp_[0-9a-f]{24}")
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{24})_i?[0-9]+")
_ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])


def _with_id(item: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(item.get("id"), str):
        raise ValueError("an item needs an id")
    return item


_StoredItem = Annotated[dict[str, Any], AfterValidator(_with_id)]


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """The items that a response adds to a conversation, in the stored format.

    Attributes:
        before: the ids of all previous responses, oldest first.
        input: the input items of its request, without those of previous responses.
        output: the output items of the response.
    """

    before: list[str]
    input: list[_StoredItem]
    output: list[_StoredItem]

    @property
    def items(self) -> list[dict[str, Any]]:
        return [*self.input, *self.output]


_TURN = TypeAdapter(StoredTurn)


@dataclass(frozen=True, slots=True)
class ResolvedConversation:
    """The conversation of a request, with all references resolved.

    Attributes:
        previous_ids: the ids of the previous responses, oldest first.
        previous_item_ids: the ids of their items.
        previous_items: the items of the previous responses.
        new_items: the items of the request; references are replaced by the items.
    """

    previous_ids: list[str] = field(default_factory=list)
    previous_item_ids: frozenset[str] = frozenset()
    previous_items: list[Item] = field(default_factory=list)
    new_items: list[Item] = field(default_factory=list)


class ResponseStore:
    """The stored responses of all clients; each client can only read its own.

    Args:
        store: None to store nothing.
        max_bytes: maximum size of a conversation's items, as for the body of a request.
        shares: None if one client may use the whole store.
    """

    def __init__(
        self,
        store: ObjectStore | None,
        max_bytes: int,
        metrics: GatewayMetrics,
        shares: ClientShares | None = None,
    ) -> None:
        self._store = store
        self._shares = shares
        self._max_bytes = max_bytes
        self._metrics = metrics
        self._failed_at: float | None = None
        self._pending: set[asyncio.Task[bool]] = set()

    @property
    def available(self) -> bool:
        """Whether the store can be used; it is not used for 10 s after a failure."""
        failed_at = self._failed_at
        has_failed = failed_at is not None and time.monotonic() - failed_at < _PAUSE_AFTER_FAILURE_S
        return self._store is not None and not has_failed

    async def put(self, client: ClientName, response: dict[str, Any], turn: StoredTurn) -> bool:
        """Store a response; return whether it is stored. The write continues if the caller is
        cancelled or the timeout passes: an incomplete one would stay until it expires."""
        if self._store is None or not self.available:
            return False
        write = asyncio.create_task(self._put(self._store, client, response, turn))
        self._pending.add(write)
        write.add_done_callback(self._pending.discard)
        done, _ = await asyncio.wait((write,), timeout=_TIMEOUT_S)
        if not done:
            self._record_failure("timeout")
        return write in done and write.result()

    async def find(self, client: ClientName, response_id: str) -> dict[str, Any]:
        """Return a response of the client, as it was sent.

        Raises:
            RequestError: `not_found`.
            Unavailable: the store cannot be read now.
        """
        return await self._read(client, response_id, _RESPONSE)

    async def delete(self, client: ClientName, response_id: str) -> None:
        """Delete a response of the client.

        Raises: as `find`.
        """
        await self.find(client, response_id)
        assert self._store is not None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._delete(self._store, client, response_id)
        except (BusError, TimeoutError) as error:
            raise _unreadable(error) from None

    async def input_items(self, client: ClientName, response_id: str) -> list[dict[str, Any]]:
        """Return all input items of a response: the items of previous responses, then its own.

        Raises:
            RequestError: as `find`; or `payload_too_large`.
            Unavailable: as `find`.
        """
        reading = _TurnReader(self, client, self._max_bytes)
        turn = await reading.turn(response_id)
        return [*await reading.items(turn.before), *turn.input]

    async def conversation(
        self, client: ClientName, previous_id: str | None, items: Sequence[Item]
    ) -> ResolvedConversation:
        """Return the conversation of a request with these items, which continues the response
        `previous_id`. References to items of previous responses are dropped, not duplicated.

        Raises:
            RequestError: as `input_items`; `param` names the field of the missing id.
            Unavailable: as `find`.
        """
        reading = _TurnReader(self, client, self._max_bytes)
        previous_ids: list[str] = []
        previous: list[dict[str, Any]] = []
        if previous_id is not None:
            try:
                previous_ids = [*(await reading.turn(previous_id)).before, previous_id]
                previous = await reading.items(previous_ids)
            except RequestError as error:
                raise _with_param("previous_response_id", error) from None
        previous_item_ids = frozenset(item["id"] for item in previous)
        new: list[StrictInput | dict[str, Any]] = []
        for index, item in enumerate(items):
            if not isinstance(item, ReferenceItem):
                new.append(item)
            elif item.id not in previous_item_ids:
                try:
                    new.append(await reading.item(item.id))
                except RequestError as error:
                    raise _with_param(f"input.{index}.id", error) from None
        return ResolvedConversation(
            previous_ids, previous_item_ids, _parsed(previous), _parsed(new)
        )

    async def turn(self, client: ClientName, response_id: str) -> StoredTurn:
        """Return the items that a response of the client adds to its conversation.

        Raises: as `find`.
        """
        stored = await self._read(client, response_id, _TURN_ITEMS)
        try:
            return _TURN.validate_python(stored, extra="ignore")
        except ValidationError as error:
            raise _unreadable(error) from None

    async def _read(self, client: ClientName, response_id: str, kind: str) -> dict[str, Any]:
        if self._store is not None and _RESPONSE_ID.fullmatch(response_id):
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    data = await self._store.get(_name(client, response_id, kind))
                if data is not None:
                    return decode_object(data)
            except (BusError, DecodeError, TimeoutError) as error:
                raise _unreadable(error) from None
        raise RequestError(
            f"response {response_id[:100]!r} not found: a response is stored if it has "
            "`store: true`, only for its own client, and only for a limited time",
            code="not_found",
        )

    async def _put(
        self, store: ObjectStore, client: ClientName, response: dict[str, Any], turn: StoredTurn
    ) -> bool:
        whole, items = orjson.dumps(response), orjson.dumps(turn)
        try:
            await self._delete_oldest(store, client, response["id"], len(whole) + len(items))
            await asyncio.gather(
                store.put(_name(client, response["id"], _RESPONSE), whole),
                store.put(_name(client, response["id"], _TURN_ITEMS), items),
            )
        except JetStreamFull as error:
            logger.warning("response not stored: %s", error.message)
            self._metrics.response_stored(client, "full")
        except BusError as error:
            self._record_failure(error.message)
            self._metrics.response_stored(client, "failed")
        else:
            self._metrics.response_stored(client, "stored")
            return True
        try:
            await self._delete(store, client, response["id"])
        except BusError as error:
            logger.warning("cannot delete the incomplete response: %s", error.message)
        return False

    async def _delete_oldest(
        self, store: ObjectStore, client: ClientName, response_id: str, size_bytes: int
    ) -> None:
        """Delete the client's oldest responses if its share is used up.

        Raises:
            JetStreamFull: the response does not fit into the share.
            BusError: JetStream is unavailable.
        """
        if self._shares is None:
            return
        fits, deleted = self._shares.reserve(client, response_id, size_bytes)
        for first in range(0, len(deleted), _DELETES_AT_ONCE):
            some = deleted[first : first + _DELETES_AT_ONCE]
            await asyncio.gather(*(self._delete(store, client, each) for each in some))
        if not fits:
            raise JetStreamFull(f"{client} has used its share of the store")

    async def _delete(self, store: ObjectStore, client: ClientName, response_id: str) -> None:
        if self._shares is not None:
            self._shares.release(client, response_id)
        names = [_name(client, response_id, kind) for kind in (_RESPONSE, _TURN_ITEMS)]
        await asyncio.gather(*map(store.delete, names))

    def _record_failure(self, reason: str) -> None:
        logger.warning("response not stored: %s", reason)
        self._failed_at = time.monotonic()


class _TurnReader:
    """Reads turns for one request, each once. Its methods raise as `ResponseStore.turn` does, and
    RequestError with `payload_too_large`.

    Args:
        max_bytes: of the items of all turns together.
    """

    def __init__(self, store: ResponseStore, client: ClientName, max_bytes: int) -> None:
        self._store = store
        self._client = client
        self._max_bytes = max_bytes
        self._bytes = 0
        self._reads = 0
        self._turns: dict[str, StoredTurn] = {}
        self._items: dict[str, dict[str, Any]] = {}  # of these turns, by id

    async def turn(self, response_id: str) -> StoredTurn:
        if response_id not in self._turns:
            self._reads += 1  # before others that run at the same time
            if self._reads > _MAX_TURNS:
                raise RequestError(
                    f"the conversation has more than {_MAX_TURNS} stored responses",
                    code="payload_too_large",
                )
            turn = await self._store.turn(self._client, response_id)
            self._turns[response_id] = turn
            self._items.update((item["id"], item) for item in turn.items)
            self._bytes += len(orjson.dumps(turn.items))
            if self._bytes > self._max_bytes:
                raise RequestError(
                    f"the conversation has more than {self._max_bytes} bytes",
                    code="payload_too_large",
                )
        return self._turns[response_id]

    async def items(self, response_ids: Iterable[str]) -> list[dict[str, Any]]:
        """Return the items of these responses, in order."""
        items: list[dict[str, Any]] = []
        remaining = iter(response_ids)
        while batch := list(islice(remaining, _CONCURRENT_READS)):
            for turn in await asyncio.gather(*map(self.turn, batch)):
                items += turn.items
        return items

    async def item(self, item_id: str) -> dict[str, Any]:
        """Return an item. Its id contains the id of its response."""
        if item_id not in self._items and (match := _ITEM_ID.fullmatch(item_id)) is not None:
            await self.turn(f"resp_{match[1]}")
        if item_id not in self._items:
            raise RequestError(f"item {item_id[:100]!r} not found", code="not_found")
        return self._items[item_id]


def _name(client: ClientName, response_id: str, kind: str) -> str:
    return f"{client}/{response_id}/{kind}"


def _parsed(items: list[Any]) -> list[Item]:
    """Return the items. Raise Unavailable if another version stored items of an unknown format."""
    try:
        return _ITEMS.validate_python(items, extra="ignore")
    except ValidationError as error:
        raise _unreadable(error) from None


def _with_param(param: str, error: ClusterError) -> RequestError:
    return RequestError(error.message, code=error.code, param=param)


def _unreadable(error: Exception) -> Unavailable:
    logger.warning("cannot read stored responses: %s", error or "timeout")
    return Unavailable(
        "stored responses cannot be read now", code="store_unavailable", retry_after_ms=1000
    )
