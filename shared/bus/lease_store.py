"""A key in JetStream that expires unless it is written again: the storage of a lease.

The key has a bucket (a stream) of its own. Each write names the last sequence of the stream: the
server rejects it after any other write, also if the stream was lost and created again.
"""

import base64
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from shared import subjects
from shared.bus.bus import Bus
from shared.bus.options import NOT_CLUSTERED, REPLICAS
from shared.bus.subscription import IncomingMessage, Subscription
from shared.errors import BusError, NoJetStream, NoResponders, WriteConflict

_NO_STREAM = 10059
_NO_MESSAGE = 10037
_OTHER_STREAM = 10058
"""Another process created the stream first, with another first sequence."""
_WRONG_SEQUENCE = 10071


@dataclass(frozen=True, slots=True)
class LeaseEntry:
    """The value of the key.

    Attributes:
        sequence: the last one of the bucket: `after` of the next write.
        value: empty if it was cleared, or has expired.
    """

    sequence: int
    value: bytes


class LeaseStore:
    """The only key of `bucket`; the bucket is created if it does not exist."""

    def __init__(self, bus: Bus, bucket: str, key: str) -> None:
        self._bus = bus
        self._bucket = bucket
        self._subject = subjects.key_value(bucket, key)

    async def read(self, *, timeout_s: float) -> LeaseEntry:
        """Return the current value; `timeout_s` is for each of up to four requests.

        Raises:
            BusError: JetStream is unavailable, does not answer, or cannot expire keys.
        """
        with _readable():
            info = await self._info(timeout_s)
            if not info["config"].get("allow_msg_ttl"):
                raise BusError(
                    f"messages in the bucket {self._bucket} do not expire: the NATS server is "
                    "older than 2.11, or the bucket was created without allow_msg_ttl"
                )
            state = info["state"]
            value = await self._value(state["last_seq"], timeout_s) if state["messages"] else b""
            return LeaseEntry(state["last_seq"], value)

    async def write(self, value: bytes, *, after: int, ttl_s: int, timeout_s: float) -> int:
        """Store the value for `ttl_s` from now on, and return its sequence.

        Raises:
            WriteConflict: `after` is not the last sequence any more.
            BusError: JetStream did not store it, or did and its reply was lost.
        """
        return await self._publish(value, after, {"Nats-TTL": f"{ttl_s}s"}, timeout_s)

    async def on_written(self, handler: Callable[[bytes], Awaitable[None]]) -> Subscription:
        """Call `handler` with values that may have been written: a hint, which may also be missed.

        Raises:
            BusError: the connection is closed.
        """

        async def on_message(message: IncomingMessage) -> None:
            await handler(message.payload)

        return await self._bus.subscribe(self._subject, on_message)

    async def _publish(
        self, value: bytes, after: int, headers: Mapping[str, str], timeout_s: float
    ) -> int:
        expected = {"Nats-Expected-Last-Sequence": str(after)}
        answer = await self._bus.request(
            self._subject, value, timeout_s=timeout_s, headers={**headers, **expected}
        )
        with _readable():
            ack = orjson.loads(answer.payload)
            if _code(ack) == _WRONG_SEQUENCE:
                raise WriteConflict(_description(ack))
            _raise_other(ack)
            return int(ack["seq"])

    async def _info(self, timeout_s: float) -> Any:
        """Return the INFO of the bucket, which is created if it does not exist."""
        info = await self._request("INFO", {}, timeout_s)
        if _code(info) == _NO_STREAM:
            created = await self._request("CREATE", self._stream(REPLICAS), timeout_s)
            if _code(created) == NOT_CLUSTERED:
                created = await self._request("CREATE", self._stream(1), timeout_s)
            if _code(created) != _OTHER_STREAM:
                _raise_other(created)
            info = await self._request("INFO", {}, timeout_s)
        _raise_other(info)
        return info

    def _stream(self, replicas: int) -> dict[str, Any]:
        """Return the config of the stream, as of a KV bucket. The first sequence is the time in ms,
        so that sequences also grow if the stream is lost and created again."""
        return {
            "name": f"KV_{self._bucket}",
            "subjects": [self._subject],
            "max_msgs_per_subject": 1,
            "discard": "new",
            "storage": "file",
            "num_replicas": replicas,
            "allow_msg_ttl": True,
            "allow_direct": True,
            "allow_rollup_hdrs": True,
            "first_seq": time.time_ns() // 1_000_000,
        }

    async def _value(self, sequence: int, timeout_s: float) -> bytes:
        answer = await self._request("MSG.GET", {"seq": sequence}, timeout_s)
        if _code(answer) == _NO_MESSAGE:
            return b""
        _raise_other(answer)
        return base64.b64decode(answer["message"].get("data", ""))

    async def _request(self, verb: str, body: dict[str, Any], timeout_s: float) -> Any:
        subject = subjects.jetstream(verb, self._bucket)
        payload = orjson.dumps(body) if body else b""
        try:
            answer = await self._bus.request(subject, payload, timeout_s=timeout_s)
        except NoResponders:
            raise NoJetStream("the NATS server has no JetStream") from None
        return orjson.loads(answer.payload)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Map the errors of parsing a reply: a permitted user can reply in JetStream's place."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BusError(f"JetStream's answer could not be read: {error!r}") from None


def _code(answer: Any) -> int | None:
    """Return JetStream's error code, or None."""
    error = answer.get("error")
    return error.get("err_code", 0) if error else None


def _description(answer: Any) -> str:
    return str(answer["error"].get("description", "rejected"))


def _raise_other(answer: Any) -> None:
    if _code(answer) is not None:
        raise BusError(f"JetStream: {_description(answer)}")
