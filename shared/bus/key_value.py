"""What JetStream keeps for all of us: values under keys, in a bucket, at several servers where
there are several."""

import contextlib
from dataclasses import dataclass

import nats.errors
import nats.js.errors
from nats.js.kv import KeyValue

from shared.bus.bus import Bus
from shared.bus.cancelling import cancellable
from shared.bus.replicas import ALONE, REPLICAS
from shared.errors import BusError, WriteConflict

_ERRORS = (nats.errors.Error, nats.js.errors.Error, TimeoutError)


@dataclass(frozen=True, slots=True)
class Entry:
    """
    Attributes:
        revision: what is written next must come after it.
    """

    value: bytes
    revision: int


class KeyValueStore:
    """A bucket, made when it is missing."""

    def __init__(self, bus: Bus, bucket: str) -> None:
        self._bus = bus
        self._bucket = bucket

    async def get(self, key: str) -> Entry | None:
        """What is kept under a key; None where nothing is.

        Raises:
            BusError: JetStream is not there, or does not answer.
        """
        try:
            with cancellable():
                entry = await (await self._open()).get(key)
        except nats.js.errors.KeyNotFoundError:
            return None
        except _ERRORS as error:
            raise _of(error, "read", key) from None
        return Entry(entry.value or b"", entry.revision or 0)

    async def put(self, key: str, value: bytes, *, after: int) -> int:
        """Keep a value; returns its revision.

        Args:
            after: the revision that is replaced; 0 where nothing may be kept yet.

        Raises:
            Overtaken: something else is kept there since.
            BusError: as `get`.
        """
        try:
            with cancellable():
                return await (await self._open()).update(key, value, last=after)
        except nats.js.errors.KeyWrongLastSequenceError as error:
            raise WriteConflict(f"{self._bucket}/{key}: {error}") from None
        except _ERRORS as error:
            raise _of(error, "keep", key) from None

    async def delete(self, key: str) -> None:
        """Keep nothing under a key any more.

        Raises:
            BusError: as `get`.
        """
        try:
            with cancellable():
                await (await self._open()).purge(key)
        except _ERRORS as error:
            raise _of(error, "delete", key) from None

    async def _open(self) -> KeyValue:
        stream = self._bus.jetstream()
        with contextlib.suppress(nats.js.errors.BucketNotFoundError):
            return await stream.key_value(self._bucket)
        try:
            return await stream.create_key_value(bucket=self._bucket, replicas=REPLICAS)
        except nats.js.errors.APIError as error:
            if error.err_code != ALONE:
                raise
        return await stream.create_key_value(bucket=self._bucket)


def _of(error: BaseException, what: str, key: str) -> BusError:
    return BusError(f"JetStream could not {what} {key}: {error or type(error).__name__}")
