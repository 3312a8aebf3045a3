"""The gateway process of `cluster up`."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence

import orjson

from shared.cli.local.addresses import local_address
from shared.cli.local.child import Child
from shared.errors import ClusterError, SettingsError
from shared.settings.gateway import GatewaySettings

_START_LIMIT_S = 15.0
_POLL_S = 0.05
_READY = b'{"http_url"'
_INVALID_SETTINGS = 2  # exit status of our commands


def check_port(settings: GatewaySettings) -> None:
    """Check that the gateway can listen on its port.

    Raises:
        SettingsError: another process listens there, or this machine does not have the address.
    """
    if not settings.port:
        return
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the gateway does
            probe.bind(address)
    except OSError as error:
        raise SettingsError(
            f"the gateway cannot listen on {settings.host}:{settings.port}: {error.strerror}. "
            "Choose another port with --http-port, 0 for any free one"
        ) from None


class HttpGatewayProcess:
    """A `gateway` process on the host and port of its settings.

    For port 0 a free port is chosen once, and is used again after a restart.

    Args:
        make_child: creates the process with these additional arguments.
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
        """URL for processes on this machine."""
        return f"{self._scheme}://{local_address(self._host, self._port)}"

    async def start(self) -> None:
        """Start the gateway, and return when it listens.

        Raises:
            SettingsError: its settings are invalid, or its port is in use.
            ClusterError: it ended, or does not listen in time.
        """
        log = self.child.log
        old_size = log.stat().st_size if log.exists() else 0
        await self.child.start()
        try:
            async with asyncio.timeout(_START_LIMIT_S):
                while _READY not in log.read_bytes()[old_size:]:
                    if not self.child.running:
                        raise await self._failure()
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ClusterError(f"the gateway did not start:\n{self.child.last_lines()}") from None

    async def _failure(self) -> ClusterError:
        lines = self.child.last_lines()
        if await self.child.wait() == _INVALID_SETTINGS:
            with contextlib.suppress(orjson.JSONDecodeError, LookupError, TypeError):
                return SettingsError(orjson.loads(lines.splitlines()[-1])["error"]["message"])
        return ClusterError(f"the gateway ended:\n{lines}")


def _free_port(host: str) -> int:
    """Return a free port.

    Raises:
        SettingsError: this machine does not have the address `host`.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        raise SettingsError(f"gateway.host {host}: {error.strerror}") from None
