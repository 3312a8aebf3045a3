"""Key-value storage in a JetStream bucket, replicated in a NATS cluster."""

import contextlib
from dataclasses import dataclass

import nats.errors
import nats.js.errors
from nats.js.kv import KeyValue

from shared.bus.bus import Bus
from shared.bus.options import NOT_CLUSTERED, REPLICAS
from shared.errors import BusError, WriteConflict
from shared.tasks import cancellable

_ERRORS = (nats.errors.Error, nats.js.errors.Error, TimeoutError)


@dataclass(frozen=True, slots=True)
class KeyValueEntry:
    """
    Attributes:
        revision: `after` of the next write.
    """

    value: bytes
    revision: int


class KeyValueStore:
    """A bucket, created if it does not exist."""

    def __init__(self, bus: Bus, bucket: str) -> None:
        self._bus = bus
        self._bucket = bucket

    async def get(self, key: str) -> KeyValueEntry | None:
        """Return the entry of a key, or None.

        Raises:
            BusError: JetStream is unavailable, or does not answer.
        """
        try:
            with cancellable():
                entry = await (await self._open()).get(key)
        except nats.js.errors.KeyNotFoundError:
            return None
        except _ERRORS as error:
            raise _bus_error(error, "read", key) from None
        return KeyValueEntry(entry.value or b"", entry.revision or 0)

    async def put(self, key: str, value: bytes, *, after: int) -> int:
        """Store a value, and return its revision.

        Args:
            after: the revision to replace; 0 if the key must not exist.

        Raises:
            WriteConflict: the key has another revision.
            BusError: as `get`.
        """
        try:
            with cancellable():
                return await (await self._open()).update(key, value, last=after)
        except nats.js.errors.KeyWrongLastSequenceError as error:
            raise WriteConflict(f"{self._bucket}/{key}: {error}") from None
        except _ERRORS as error:
            raise _bus_error(error, "store", key) from None

    async def delete(self, key: str) -> None:
        """Delete a key with its history.

        Raises:
            BusError: as `get`.
        """
        try:
            with cancellable():
                await (await self._open()).purge(key)
        except _ERRORS as error:
            raise _bus_error(error, "delete", key) from None

    async def _open(self) -> KeyValue:
        stream = self._bus.jetstream()
        with contextlib.suppress(nats.js.errors.BucketNotFoundError):
            return await stream.key_value(self._bucket)
        try:
            return await stream.create_key_value(bucket=self._bucket, replicas=REPLICAS)
        except nats.js.errors.APIError as error:
            if error.err_code != NOT_CLUSTERED:
                raise
        return await stream.create_key_value(bucket=self._bucket)


def _bus_error(error: BaseException, action: str, key: str) -> BusError:
    return BusError(f"JetStream could not {action} {key}: {error or type(error).__name__}")
