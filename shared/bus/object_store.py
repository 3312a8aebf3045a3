"""Values of any size that JetStream keeps for us under names, in a bucket with bounds.

A value is stored as NATS' object stores have it: in chunks, and its description after them.
"""

import contextlib
import logging

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import ObjectStoreConfig
from nats.js.object_store import OBJ_CHUNKS_PRE_TEMPLATE, OBJ_STREAM_TEMPLATE
from nats.js.object_store import ObjectStore as NatsStore

from shared.bus.bus import Bus
from shared.bus.cancelling import cancellable
from shared.bus.replicas import ALONE, REPLICAS
from shared.errors import BusError, StoreFull

logger = logging.getLogger(__name__)

_ERRORS = (nats.errors.Error, nats.js.errors.Error, TimeoutError)
_NO_ROOM = frozenset({10023, 10047, 10077})
"""The error codes of a server, an account and a bucket without room."""


class ObjectStore:
    """A bucket, made when it is missing.

    Args:
        max_bytes: of all that is kept; what would be more is refused.
        max_age_s: what is older is forgotten.
    """

    def __init__(self, bus: Bus, bucket: str, *, max_bytes: int, max_age_s: float) -> None:
        self._bus = bus
        self._bucket = bucket
        self._stream = OBJ_STREAM_TEMPLATE.format(bucket=bucket)
        self._max_bytes = max_bytes
        self._max_age_s = float(max_age_s)
        self._is_made = False

    async def put(self, name: str, value: bytes) -> None:
        """Keep a value.

        Raises:
            StoreFull: there is no room for it.
            BusError: JetStream is not there, or does not answer.
        """
        try:
            with cancellable():
                await (await self._open()).put(name, value)
        except _ERRORS as error:
            self._is_made = False  # perhaps
            raise _of(error, "keep", name) from None

    async def get(self, name: str) -> bytes | None:
        """What is kept under a name; None where nothing is.

        Raises:
            BusError: as `put`.
        """
        try:
            with cancellable():
                return await self._read(name)
        except nats.js.errors.NotFoundError:
            return None
        except _ERRORS as error:
            raise _of(error, "read", name) from None

    async def delete(self, name: str) -> None:
        """Keep nothing under a name any more.

        Raises:
            BusError: as `put`.
        """
        try:
            with cancellable():
                await (await self._open()).delete(name)
        except nats.js.errors.NotFoundError:
            return
        except _ERRORS as error:
            failure = _of(error, "delete", name)
            if not isinstance(failure, StoreFull):  # its chunks are gone: it cannot be read
                raise failure from None

    async def _read(self, name: str) -> bytes:
        """A message for each chunk: the client's own way makes a consumer for each object, and
        waits without end for chunks that were forgotten meanwhile."""
        stream = self._bus.jetstream()
        described = await (await self._open()).get_info(name)
        subject = OBJ_CHUNKS_PRE_TEMPLATE.format(bucket=self._bucket, obj=described.nuid)
        value, sequence = bytearray(), 0
        for _ in range(described.chunks or 0):
            chunk = await stream.get_msg(self._stream, seq=sequence + 1, subject=subject, next=True)
            value += chunk.data or b""
            sequence = chunk.seq or 0
        return bytes(value)

    async def _open(self) -> NatsStore:
        stream = self._bus.jetstream()
        if not self._is_made:
            try:
                await self._hold_bounds(stream)
            except nats.js.errors.NotFoundError:
                await self._make(stream)
            except nats.js.errors.APIError as error:
                logger.warning("%s keeps the bounds that it has: %s", self._bucket, error)
            self._is_made = True
        return NatsStore(self._bucket, self._stream, stream)

    async def _make(self, stream: JetStreamContext) -> None:
        config = ObjectStoreConfig(max_bytes=self._max_bytes, ttl=self._max_age_s)
        with contextlib.suppress(nats.js.errors.BadRequestError):  # another has made it meanwhile
            try:
                await stream.create_object_store(self._bucket, config, replicas=REPLICAS)
            except nats.js.errors.APIError as error:
                if error.err_code != ALONE:
                    raise
                await stream.create_object_store(self._bucket, config)

    async def _hold_bounds(self, stream: JetStreamContext) -> None:
        """A bucket that was made with other bounds gets ours."""
        config = (await stream.stream_info(self._stream)).config
        if (config.max_bytes, config.max_age) != (self._max_bytes, self._max_age_s):
            window_s = min(config.duplicate_window or 0, self._max_age_s)
            await stream.update_stream(
                config.evolve(
                    max_bytes=self._max_bytes,
                    max_age=self._max_age_s,
                    duplicate_window=window_s,  # no longer than values are kept
                )
            )


def _of(error: BaseException, what: str, name: str) -> BusError:
    kind = StoreFull if getattr(error, "err_code", None) in _NO_ROOM else BusError
    return kind(f"JetStream could not {what} {name}: {error or type(error).__name__}")
