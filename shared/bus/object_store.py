"""Values of any size in a bounded bucket of JetStream.

A value is stored in the format of NATS' object stores: its chunks, and then its metadata.
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
from shared.bus.options import NOT_CLUSTERED, REPLICAS
from shared.errors import BusError, JetStreamFull
from shared.tasks import cancellable

logger = logging.getLogger(__name__)

_ERRORS = (nats.errors.Error, nats.js.errors.Error, TimeoutError)
_STORE_FULL = frozenset({10023, 10047, 10077})
"""The error codes of a full server, account and bucket."""


class ObjectStore:
    """A bucket, created if it does not exist.

    Args:
        max_bytes: of all values; a value above it is rejected.
        max_age_s: older values are deleted.
    """

    def __init__(self, bus: Bus, bucket: str, *, max_bytes: int, max_age_s: float) -> None:
        self._bus = bus
        self._bucket = bucket
        self._stream = OBJ_STREAM_TEMPLATE.format(bucket=bucket)
        self._max_bytes = max_bytes
        self._max_age_s = float(max_age_s)
        self._created = False

    async def put(self, name: str, value: bytes) -> None:
        """Store a value.

        Raises:
            JetStreamFull: there is no capacity for it.
            BusError: JetStream is unavailable, or does not answer.
        """
        try:
            with cancellable():
                await (await self._open()).put(name, value)
        except _ERRORS as error:
            self._created = False  # the bucket may have been deleted
            raise _bus_error(error, "store", name) from None

    async def get(self, name: str) -> bytes | None:
        """Return the value of a name, or None.

        Raises:
            BusError: as `put`.
        """
        try:
            with cancellable():
                return await self._read(name)
        except nats.js.errors.NotFoundError:
            return None
        except _ERRORS as error:
            raise _bus_error(error, "read", name) from None

    async def delete(self, name: str) -> None:
        """Delete the value of a name.

        Raises:
            BusError: as `put`.
        """
        try:
            with cancellable():
                await (await self._open()).delete(name)
        except nats.js.errors.NotFoundError:
            return
        except _ERRORS as error:
            failure = _bus_error(error, "delete", name)
            if not isinstance(failure, JetStreamFull):  # its chunks are deleted: it cannot be read
                raise failure from None

    async def _read(self, name: str) -> bytes:
        """Get each chunk with one request: the client's own method creates a consumer per object,
        and waits forever for chunks that have expired meanwhile."""
        stream = self._bus.jetstream()
        info = await (await self._open()).get_info(name)
        subject = OBJ_CHUNKS_PRE_TEMPLATE.format(bucket=self._bucket, obj=info.nuid)
        value, sequence = bytearray(), 0
        for _ in range(info.chunks or 0):
            chunk = await stream.get_msg(self._stream, seq=sequence + 1, subject=subject, next=True)
            value += chunk.data or b""
            sequence = chunk.seq or 0
        return bytes(value)

    async def _open(self) -> NatsStore:
        stream = self._bus.jetstream()
        if not self._created:
            try:
                await self._update_bounds(stream)
            except nats.js.errors.NotFoundError:
                await self._create(stream)
            except nats.js.errors.APIError as error:
                logger.warning("cannot change the bounds of %s: %s", self._bucket, error)
            self._created = True
        return NatsStore(self._bucket, self._stream, stream)

    async def _create(self, stream: JetStreamContext) -> None:
        config = ObjectStoreConfig(max_bytes=self._max_bytes, ttl=self._max_age_s)
        with contextlib.suppress(nats.js.errors.BadRequestError):  # another process was first
            try:
                await stream.create_object_store(self._bucket, config, replicas=REPLICAS)
            except nats.js.errors.APIError as error:
                if error.err_code != NOT_CLUSTERED:
                    raise
                await stream.create_object_store(self._bucket, config)

    async def _update_bounds(self, stream: JetStreamContext) -> None:
        """Give our bounds to a bucket that was created with others."""
        config = (await stream.stream_info(self._stream)).config
        if (config.max_bytes, config.max_age) != (self._max_bytes, self._max_age_s):
            window_s = min(config.duplicate_window or 0, self._max_age_s)
            await stream.update_stream(
                config.evolve(
                    max_bytes=self._max_bytes,
                    max_age=self._max_age_s,
                    duplicate_window=window_s,  # must not exceed max_age
                )
            )


def _bus_error(error: BaseException, action: str, name: str) -> BusError:
    kind = JetStreamFull if getattr(error, "err_code", None) in _STORE_FULL else BusError
    return kind(f"JetStream could not {action} {name}: {error or type(error).__name__}")
