"""One key in JetStream that goes by itself when nobody writes it again: what a lease needs.

It has a bucket (a stream) of its own and is written only after its last sequence: if anything
came in between, also the end of the stream and a new one, the server refuses it.
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
from shared.bus.message import BusMessage
from shared.bus.replicas import ALONE, REPLICAS
from shared.bus.subscription import Subscription
from shared.errors import BusError, NoJetStream, NoResponders, WriteConflict

_NO_STREAM = 10059
_NO_MESSAGE = 10037
_OTHER_STREAM = 10058
"""Somebody made it first: with another first sequence."""
_OVERTAKEN = 10071


@dataclass(frozen=True, slots=True)
class LeaseValue:
    """What is kept under the key.

    Attributes:
        sequence: the last one of the bucket; what is written next must come after it.
        value: empty where it was cleared, or has gone.
    """

    sequence: int
    value: bytes


class LeaseStore:
    """A key of `bucket`, which must have no other one; the bucket is made when it is missing."""

    def __init__(self, bus: Bus, bucket: str, key: str) -> None:
        self._bus = bus
        self._bucket = bucket
        self._subject = subjects.kept(bucket, key)

    async def look(self, *, timeout_s: float) -> LeaseValue:
        """What is kept now; `timeout_s` is for each of up to four questions.

        Raises:
            BusError: JetStream is not there, does not answer, or cannot keep a lease.
        """
        with _readable():
            info = await self._info(timeout_s)
            if not info["config"].get("allow_msg_ttl"):
                raise BusError(
                    f"the bucket {self._bucket} keeps messages for good: the NATS server is older "
                    "than 2.11, or the bucket was made without allow_msg_ttl"
                )
            state = info["state"]
            value = await self._value(state["last_seq"], timeout_s) if state["messages"] else b""
            return LeaseValue(state["last_seq"], value)

    async def write(self, value: bytes, *, after: int, ttl_s: int, timeout_s: float) -> int:
        """Keep it for `ttl_s` from now on; returns its sequence.

        Raises:
            Overtaken: `after` is no more the last sequence.
            BusError: JetStream did not keep it, or did and its answer was lost.
        """
        return await self._publish(value, after, {"Nats-TTL": f"{ttl_s}s"}, timeout_s)

    async def on_written(self, handler: Callable[[bytes], Awaitable[None]]) -> Subscription:
        """Call `handler` with what somebody may have written: a hint, which may also be missed.

        Raises:
            BusError: the connection is closed.
        """

        async def hear(message: BusMessage) -> None:
            await handler(message.payload)

        return await self._bus.subscribe(self._subject, hear)

    async def _publish(
        self, value: bytes, after: int, headers: Mapping[str, str], timeout_s: float
    ) -> int:
        expected = {"Nats-Expected-Last-Sequence": str(after)}
        answer = await self._bus.request(
            self._subject, value, timeout_s=timeout_s, headers={**headers, **expected}
        )
        with _readable():
            ack = orjson.loads(answer.payload)
            if _code(ack) == _OVERTAKEN:
                raise WriteConflict(_description(ack))
            _raise_other(ack)
            return int(ack["seq"])

    async def _info(self, timeout_s: float) -> Any:
        """About the bucket, made first where there is none."""
        info = await self._ask("INFO", {}, timeout_s)
        if _code(info) == _NO_STREAM:
            created = await self._ask("CREATE", self._stream(REPLICAS), timeout_s)
            if _code(created) == ALONE:
                created = await self._ask("CREATE", self._stream(1), timeout_s)
            if _code(created) != _OTHER_STREAM:
                _raise_other(created)
            info = await self._ask("INFO", {}, timeout_s)
        _raise_other(info)
        return info

    def _stream(self, replicas: int) -> dict[str, Any]:
        """As those of KV buckets are. It begins at the time, in ms: sequences grow also when the
        stream is lost and made again."""
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
        answer = await self._ask("MSG.GET", {"seq": sequence}, timeout_s)
        if _code(answer) == _NO_MESSAGE:
            return b""
        _raise_other(answer)
        return base64.b64decode(answer["message"].get("data", ""))

    async def _ask(self, verb: str, question: dict[str, Any], timeout_s: float) -> Any:
        subject = subjects.jetstream(verb, self._bucket)
        payload = orjson.dumps(question) if question else b""
        try:
            answer = await self._bus.request(subject, payload, timeout_s=timeout_s)
        except NoResponders:
            raise NoJetStream("the NATS server has no JetStream") from None
        return orjson.loads(answer.payload)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Around the reading of answers: whoever is allowed to can answer in JetStream's place."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BusError(f"JetStream's answer could not be read: {error!r}") from None


def _code(answer: Any) -> int | None:
    """JetStream's own code of an error; None where there is no error."""
    error = answer.get("error")
    return error.get("err_code", 0) if error else None


def _description(answer: Any) -> str:
    return str(answer["error"].get("description", "refused"))


def _raise_other(answer: Any) -> None:
    if _code(answer) is not None:
        raise BusError(f"JetStream: {_description(answer)}")
