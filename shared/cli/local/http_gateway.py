"""The gateway of `cluster up`: its address, and when it listens."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence

import orjson

from shared.cli.local.child import Child
from shared.cli.local.kept import local_address
from shared.errors import ClusterError, SettingsError
from shared.settings.gateway import GatewaySettings

_START_LIMIT_S = 15.0
_POLL_S = 0.05
_READY = b'{"http_url"'
_WRONG_SETTINGS = 2  # what our commands exit with


class HttpGateway:
    """A `gateway` on the host and port of its settings; for port 0 on one that is free now, and
    stays its own when it is started again.

    Args:
        make_child: the process, with these arguments besides those of every child.
    """

    def __init__(
        self, settings: GatewaySettings, make_child: Callable[[Sequence[str]], Child]
    ) -> None:
        self._host = settings.host
        self._port = settings.port or _free_port(settings.host)
        self._scheme = "https" if settings.tls is not None else "http"
        self.child = make_child(["--json", "--port", str(self._port)])

    @property
    def url(self) -> str:
        """Where a process on this machine reaches it."""
        return f"{self._scheme}://{local_address(self._host, self._port)}"

    async def start(self) -> None:
        """Start it and wait until it listens.

        Raises:
            SettingsError: it cannot run as it is set up; says why.
            ClusterError: it ended, or does not listen in time.
        """
        log = self.child.log
        said_before = log.stat().st_size if log.exists() else 0
        await self.child.start()
        try:
            async with asyncio.timeout(_START_LIMIT_S):
                while _READY not in log.read_bytes()[said_before:]:
                    if not self.child.running:
                        raise await self._failure()
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ClusterError(f"the gateway does not start:\n{self.child.last_lines()}") from None

    async def _failure(self) -> ClusterError:
        lines = self.child.last_lines()
        if await self.child.wait() == _WRONG_SETTINGS:
            with contextlib.suppress(orjson.JSONDecodeError, LookupError, TypeError):
                return SettingsError(orjson.loads(lines.splitlines()[-1])["error"]["message"])
        return ClusterError(f"the gateway ended:\n{lines}")


def _free_port(host: str) -> int:
    """Raises SettingsError when this machine has no such address."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        raise SettingsError(f"gateway.host {host}: {error.strerror}") from None
