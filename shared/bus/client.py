"""The NATS client, mended where it lets a broken connection through to its caller."""

import contextlib
import logging
from typing import Any

from nats.aio.client import Client as NatsClient

_NO_WARNING = "returning true from eof_received() has no effect when using ssl"
"""Said of every connection with TLS that ends; nothing is wrong then (nats-py 2.16)."""
logging.getLogger("asyncio").addFilter(lambda record: record.msg != _NO_WARNING)


class Client(NatsClient):
    """As `nats.aio.client.Client`; what is sent while a connection breaks waits for the next."""

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        # Between the end of its flusher and that of its reader the client writes to the closed
        # transport itself (nats-py 2.16): a RuntimeError from uvloop, or an OSError, out of
        # publish and subscribe. The command is still buffered, and goes out on reconnecting.
        with contextlib.suppress(OSError, RuntimeError):
            return await super()._flush_pending(force_flush)

    async def close(self) -> None:
        # With something buffered, closing writes to the closed transport too. It goes nowhere.
        if not self.is_connected:
            self._pending, self._pending_data_size = [], 0
        with contextlib.suppress(OSError, RuntimeError):
            await super().close()
