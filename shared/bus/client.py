"""The NATS client, patched where a broken connection raises errors in its caller."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Any

from nats.aio.client import Client as NatsClient
from nats.protocol.command import pub_cmd

_HARMLESS_WARNING = "returning true from eof_received() has no effect when using ssl"
"""Logged at the end of every TLS connection (nats-py 2.16)."""
logging.getLogger("asyncio").addFilter(lambda record: record.msg != _HARMLESS_WARNING)
_CANCEL_INTERVAL_S = 0.1


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


class PatchedNatsClient(NatsClient):
    """As `nats.aio.client.Client`; messages sent on a breaking connection wait for the next one."""

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
