"""The NATS client, patched where a broken connection raises errors in its caller, and where a
message from outside would end its reading."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nats.aio.client import Client as NatsClient
from nats.aio.subscription import Subscription
from nats.errors import StaleConnectionError
from nats.nuid import NUID
from nats.protocol.command import pub_cmd

from shared.bus.parser import ProtocolParser
from shared.bus.receive_statistics import ReceiveStatistics

_HARMLESS_WARNING = "returning true from eof_received() has no effect when using ssl"
"""Logged at the end of every TLS connection (nats-py 2.16)."""
logging.getLogger("asyncio").addFilter(lambda record: record.msg != _HARMLESS_WARNING)
_CANCEL_INTERVAL_S = 0.1
_MAX_PENDING_QUERIES = 1000
_NAME_BYTES = 11


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a NATS server reports in its INFO.

    Attributes:
        id: changes with each run of the server.
        cluster: the name of the NATS cluster; empty for a single server.
        host, port: the address on which the server listens.
    """

    id: str
    name: str
    cluster: str
    host: str
    port: int
    requires_auth: bool


Receiver = Callable[[str, str, bytes, Mapping[str, str] | None], None]
"""Takes subject, reply subject, payload and headers of a message, without a wait."""


class UnreadableHeadersError(ValueError):
    """The headers of a message cannot be parsed."""


class _RandomNames(NUID):
    """Names of inboxes and of replies. nats-py counts up from a random start: who sees one name
    could guess those that follow, and have a process answer there."""

    def next(self) -> bytearray:
        return bytearray(secrets.token_hex(_NAME_BYTES), "ascii")


class PatchedNatsClient(NatsClient):
    """As `nats.aio.client.Client`; messages sent on a breaking connection wait for the next one.

    Attributes:
        statistics: counts the received messages that are dropped.
    """

    def __init__(self, statistics: ReceiveStatistics | None = None) -> None:
        super().__init__()
        self._ps = ProtocolParser(self)
        self._nuid = _RandomNames()
        self.statistics = statistics or ReceiveStatistics()
        self._receivers: dict[int, Receiver] = {}  # by the id of their subscription

    @property
    def server_facts(self) -> ServerInfo:
        """The INFO of the server of the last connection."""
        info = self._server_info
        return ServerInfo(
            id=str(info.get("server_id", "")),
            name=str(info.get("server_name", "")),
            cluster=str(info.get("cluster", "")),
            host=str(info.get("host", "")),
            port=int(info.get("port", 0)),
            requires_auth=bool(info.get("auth_required")),
        )

    def send(self, subject: str, payload: bytes, reply: str) -> None:
        """As `publish` to a valid subject, without a wait while much is pending."""
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += len(payload)
        command = pub_cmd(subject, reply, payload)
        self._pending.append(command)
        self._pending_data_size += len(command)
        if self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    async def receive(self, subject: str, queue: str, receiver: Receiver) -> Subscription:
        """Subscribe; `receiver` gets the messages, also those that arrive before this returns."""
        sid = self._sid + 1  # `subscribe` takes it before it waits
        self._receivers[sid] = receiver
        # With a future nats-py makes neither a task nor an iterator, which is in a reference cycle.
        unused = asyncio.get_running_loop().create_future()
        try:
            return await self.subscribe(subject, queue=queue, future=unused)
        except BaseException:
            del self._receivers[sid]
            self._subs.pop(sid, None)
            raise

    async def end_receiving(self, subscription: Subscription) -> None:
        """Undo `receive`."""
        self._receivers.pop(subscription._id, None)
        await subscription.unsubscribe()

    def drop(self, subject: bytes) -> None:
        """Note a message that was skipped because of its subject or reply subject."""
        self.statistics.count_dropped("subject", subject)

    def take(
        self,
        sid: int,
        subject: bytes,
        reply: bytes,
        payload: bytes,
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        """Give a message to the receiver of its subscription; returns False if it has none."""
        receiver = self._receivers.get(sid)
        if receiver is None:
            return False
        try:
            receiver(subject.decode(), reply.decode(), payload, headers)
        except Exception as error:
            self.statistics.count_dropped("message", f"{subject!r}: {error!r}")
        return True

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        # nats-py 2.16 stops reading for good at an exception here; the connection looks alive
        # until its pings time out.
        try:
            if sid in self._receivers:
                self.take(sid, subject, reply, data, await self._process_headers(headers))
            elif self._is_full(sid):
                self.statistics.count_dropped("too_many", subject)
            else:
                await super()._process_msg(sid, subject, reply, data, headers)
        except UnreadableHeadersError as error:
            self.statistics.count_dropped("headers", f"{subject!r}: {error}")
        except Exception as error:
            self.statistics.count_dropped("message", f"{subject!r}: {error!r}")

    def _is_full(self, sid: int) -> bool:
        """Whether too many messages wait at a subscription of the library's own: queries for the
        health of a process, whose senders nobody knows."""
        subscription = self._subs.get(sid)
        return subscription is not None and subscription.pending_msgs >= _MAX_PENDING_QUERIES

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        try:
            headers.decode()  # nats-py replaces bytes that are no UTF-8 in values only
            parsed: dict[str, str] | None = await super()._process_headers(headers)
        except Exception as error:
            raise UnreadableHeadersError(repr(error)) from None
        return parsed

    async def _read_loop(self) -> None:
        await super()._read_loop()
        if self.is_connected:  # nats-py 2.16 ended its reading without a new connection
            await self._process_op_err(StaleConnectionError())

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        # Between the end of its flusher and that of its reader the client writes to the closed
        # transport itself (nats-py 2.16): a RuntimeError from uvloop, or an OSError, out of
        # publish and subscribe. The command is still buffered, and goes out on reconnecting.
        # With TLS nothing is raised and the written data is lost, so nothing is written.
        if self._is_breaking():
            return None
        with contextlib.suppress(OSError, RuntimeError):
            return await super()._flush_pending(force_flush)

    def _is_breaking(self) -> bool:
        writer = self._writer
        return self.is_connected and writer is not None and writer.is_closing()

    @property
    def _writer(self) -> asyncio.StreamWriter | None:
        return getattr(self._transport, "_io_writer", None)

    async def _process_connect_init(self) -> None:
        # nats-py 2.16 does not close the socket of a failed attempt. Closing the client then waits
        # until the reader of that socket is notified of its end, which asyncio never does after a
        # failed TLS handshake.
        try:
            await super()._process_connect_init()
        except BaseException:
            if (writer := self._writer) is not None:
                writer.transport.abort()
            self._transport = None
            raise

    async def close(self) -> None:
        await self._close_quietly()
        await self._end_reconnecting()
        await self._close_quietly()  # if the reconnect succeeded meanwhile

    async def _close_quietly(self) -> None:
        # With buffered data, closing also writes to the closed transport.
        if not self.is_connected:
            self._pending, self._pending_data_size = [], 0
        with contextlib.suppress(OSError, RuntimeError):
            await super().close()

    async def _end_reconnecting(self) -> None:
        # nats-py cancels its reconnect task once and does not check that it ended. Up to Python
        # 3.11 `asyncio.wait_for` drops a cancellation that arrives together with the connection
        # (seen in 1 of 100 closes): the task then reconnects forever and the loop cannot close.
        task = self._reconnection_task
        if task is None or task is asyncio.current_task():
            return
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_CANCEL_INTERVAL_S)
