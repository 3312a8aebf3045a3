"""Responses that are stored: as they were told, and apart from that what each adds to the one
before it."""

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
from controller.gateway.responses.items import Item, ReferenceItem
from shared.bus import ObjectStore
from shared.codec import decode_object
from shared.errors import (
    BusError,
    ClusterError,
    DecodeError,
    RequestError,
    StoreFull,
    Unavailable,
)
from shared.external_model import ExternalModel
from shared.ids import ClientName

logger = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_AFTER_FAILURE_S = 10.0
_AT_ONCE = 8
_TOLD, _ADDED = "response", "items"
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
    """What a response adds to a conversation.

    Attributes:
        before: the ids of all responses before it, the first one first.
        input: the items that it was asked with, beyond theirs.
        output: its own.
    """

    before: list[str]
    input: list[_StoredItem]
    output: list[_StoredItem]

    @property
    def items(self) -> list[dict[str, Any]]:
        return [*self.input, *self.output]


_TURN = TypeAdapter(StoredTurn)


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """What a request means.

    Attributes:
        before: the ids of the responses that it goes on from.
        known: the ids of their items.
        earlier: those items.
        own: the request's, with what it refers to in its place.
    """

    before: list[str] = field(default_factory=list)
    known: frozenset[str] = frozenset()
    earlier: list[Item] = field(default_factory=list)
    own: list[Item] = field(default_factory=list)


class ResponseStore:
    """Those of all clients; each sees its own.

    Args:
        store: None where nothing is stored.
        max_bytes: of a conversation's items, as of a body that had them all.
    """

    def __init__(self, store: ObjectStore | None, max_bytes: int, metrics: GatewayMetrics) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._metrics = metrics
        self._failed_at: float | None = None
        self._keeping: set[asyncio.Task[bool]] = set()

    @property
    def available(self) -> bool:
        """Whether to try: after a failure it takes a while."""
        failed_at = self._failed_at
        has_failed = failed_at is not None and time.monotonic() - failed_at < _AFTER_FAILURE_S
        return self._store is not None and not has_failed

    async def keep(self, client: ClientName, response: dict[str, Any], turn: StoredTurn) -> bool:
        """Store a response; returns whether it is. What has begun goes on when its caller is
        cancelled or does not wait any more: half of it would stay for long."""
        if self._store is None or not self.available:
            return False
        keeping = asyncio.create_task(self._keep(self._store, client, response, turn))
        self._keeping.add(keeping)
        keeping.add_done_callback(self._keeping.discard)
        done, _ = await asyncio.wait((keeping,), timeout=_TIMEOUT_S)
        if not done:
            self._failed("no answer in time")
        return keeping in done and keeping.result()

    async def find(self, client: ClientName, response_id: str) -> dict[str, Any]:
        """A client's own response, as it was told.

        Raises:
            RequestError: `not_found`.
            Unavailable: what is stored cannot be read now.
        """
        return await self._read(client, response_id, _TOLD)

    async def delete(self, client: ClientName, response_id: str) -> None:
        """Raises: as `find`."""
        await self.find(client, response_id)
        assert self._store is not None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._delete(self._store, client, response_id)
        except (BusError, TimeoutError) as error:
            raise _unreadable(error) from None

    async def input_of(self, client: ClientName, response_id: str) -> list[dict[str, Any]]:
        """All items that a response was asked with, those of the responses before it first.

        Raises:
            RequestError: as `find`; or `payload_too_large`.
            Unavailable: as `find`.
        """
        turn = await self._turn(client, response_id)
        return [*await self._items(client, turn.before), *turn.input]

    async def conversation(
        self, client: ClientName, last: str | None, items: Sequence[Item]
    ) -> StoredConversation:
        """What a request's items mean behind those of the response that it goes on from. What it
        refers to and is there already is not there twice.

        Raises:
            RequestError: as `input_of`; `param` names what is not found.
            Unavailable: as `find`.
        """
        before: list[str] = []
        earlier: list[dict[str, Any]] = []
        if last is not None:
            try:
                before = [*(await self._turn(client, last)).before, last]
                earlier = await self._items(client, before)
            except RequestError as error:
                raise _at("previous_response_id", error) from None
        known = frozenset(item["id"] for item in earlier)
        referred: dict[str, dict[str, Any]] = {}
        own: list[ExternalModel | dict[str, Any]] = []
        for place, item in enumerate(items):
            if not isinstance(item, ReferenceItem):
                own.append(item)
            elif item.id not in known:
                try:
                    own.append(await self._referred(client, item.id, referred))
                except RequestError as error:
                    raise _at(f"input.{place}.id", error) from None
        return StoredConversation(before, known, _parsed(earlier), _parsed(own))

    async def _referred(
        self, client: ClientName, item_id: str, found: dict[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """An item, by the response that its id names.

        Args:
            found: the items of responses that were read, by id; has those of one more then.
        """
        if item_id not in found and (named := _ITEM_ID.fullmatch(item_id)) is not None:
            turn = await self._turn(client, f"resp_{named[1]}")
            found.update((item["id"], item) for item in turn.items)
        if item_id not in found:
            raise RequestError(f"item {item_id[:100]!r} not found", code="not_found")
        return found[item_id]

    async def _items(self, client: ClientName, ids: Iterable[str]) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        size = 0
        waiting = iter(ids)
        while some := list(islice(waiting, _AT_ONCE)):
            for turn in await asyncio.gather(*(self._turn(client, each) for each in some)):
                items += turn.items
                size += len(orjson.dumps(turn.items))
            if size > self._max_bytes:
                raise RequestError(
                    f"the conversation has more than {self._max_bytes} bytes",
                    code="payload_too_large",
                )
        return items

    async def _turn(self, client: ClientName, response_id: str) -> StoredTurn:
        found = await self._read(client, response_id, _ADDED)
        try:
            return _TURN.validate_python(found, extra="ignore")
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
            f"response {response_id[:100]!r} not found: kept are those that say `store: true`, "
            "each for its own client, for a while",
            code="not_found",
        )

    async def _keep(
        self, store: ObjectStore, client: ClientName, response: dict[str, Any], turn: StoredTurn
    ) -> bool:
        try:
            await asyncio.gather(
                store.put(_name(client, response["id"], _TOLD), orjson.dumps(response)),
                store.put(_name(client, response["id"], _ADDED), orjson.dumps(turn)),
            )
        except StoreFull as error:
            logger.warning("a response is not stored: %s", error.message)
            self._metrics.stored(client, "full")
        except BusError as error:
            self._failed(error.message)
            self._metrics.stored(client, "failed")
        else:
            self._metrics.stored(client, "stored")
            return True
        try:
            await self._delete(store, client, response["id"])
        except BusError as error:
            logger.warning("what was stored of it stays: %s", error.message)
        return False

    async def _delete(self, store: ObjectStore, client: ClientName, response_id: str) -> None:
        for kind in (_TOLD, _ADDED):
            await store.delete(_name(client, response_id, kind))

    def _failed(self, why: str) -> None:
        logger.warning("a response is not stored: %s", why)
        self._failed_at = time.monotonic()


def _name(client: ClientName, response_id: str, kind: str) -> str:
    return f"{client}/{response_id}/{kind}"


def _parsed(items: list[Any]) -> list[Item]:
    """Raises Unavailable for what another version stored and this one cannot read."""
    try:
        return _ITEMS.validate_python(items, extra="ignore")
    except ValidationError as error:
        raise _unreadable(error) from None


def _at(param: str, error: ClusterError) -> RequestError:
    return RequestError(error.message, code=error.code, param=param)


def _unreadable(error: Exception) -> Unavailable:
    logger.warning("what is stored cannot be read: %s", error or "no answer in time")
    return Unavailable(
        "what is stored cannot be read now", code="store_unavailable", retry_after_ms=1000
    )
