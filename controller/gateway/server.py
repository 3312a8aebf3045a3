"""The HTTP server: sockets, TLS and connection limits."""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from controller.gateway.connection_deadlines import ConnectionTimeouts
from controller.gateway.connection_table import ConnectionTable
from controller.gateway.http_protocol import bounded_protocol
from shared.errors import SettingsError
from shared.settings.gateway import GatewaySettings, GatewayTlsSettings

logger = logging.getLogger(__name__)

_BACKLOG = 1024
_OTHER_FILES = 4096
"""Open files of a gateway that are not its connections: NATS, and mostly TLS handshakes, which are
limited in time, not in number: uvloop tells of a connection when its handshake is done."""
_IDLE_S = 75.0
_BODY_GRACE_S = 3.0
_SEND_GRACE_S = 1.0
"""Handlers have the limits of the settings, and answer or count what exceeds them; a connection is
closed only if its handler did not do so."""
_CANCEL_TIMEOUT_S = 2.0
_TLS_CLOSE_S = 2.0
_ADDRESSES = {"localhost": ("127.0.0.1", "::1")}
"""Both addresses of localhost, whatever /etc/hosts says: clients try either."""
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def check_tls(tls: GatewayTlsSettings | None) -> None:
    """Raise SettingsError if the certificate or its key cannot be used."""
    if tls is None:
        return
    try:
        # Without a password OpenSSL would prompt for that of an encrypted key on the terminal.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.cert_file, tls.key_file, password="")
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"gateway.tls: the certificate or key cannot be used: {error}"
        ) from None


def allow_open_files(connections: int) -> None:
    """Raise this process's limit of open files so that it can have so many connections. macOS
    allows 256 by default."""
    needed = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        logger.warning("the system allows %d open files, too few for gateway.max_connections", hard)
        needed = hard
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class HttpServer:
    """Binds its sockets when created. TLS files must have passed `check_tls`.

    Raises:
        SettingsError: the server cannot listen on the address.
    """

    def __init__(self, settings: GatewaySettings, app: ASGIApp) -> None:
        self._settings = settings
        self._sockets = _listen(settings.host, settings.port)
        self._server = _Server(
            _config(settings, app), handshake_timeout_s=settings.header_timeout_ms / 1000
        )

    @property
    def url(self) -> str:
        host, port = self._sockets[0].getsockname()[:2]
        scheme = "https" if self._settings.tls is not None else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def run(self) -> None:
        """Serve until `stop` was called and the open requests have finished."""
        await self._server.serve(sockets=self._sockets)

    def stop(self, *, force: bool) -> None:
        """Accept no more connections. Open requests continue unless `force` is set."""
        self._server.force_exit = self._server.force_exit or force
        self._server.should_exit = True

    async def cancel_requests(self) -> None:
        """Cancel the requests that are still open, and wait for them at most 2 s."""
        if tasks := list(self._server.server_state.tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT_S)


class _Server(uvicorn.Server):
    """A uvicorn server that also limits the time of a TLS handshake and of a TLS shutdown."""

    def __init__(self, config: uvicorn.Config, *, handshake_timeout_s: float) -> None:
        super().__init__(config)
        self._handshake_timeout_s = handshake_timeout_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {}
        if self.config.ssl is not None:
            tls = {
                "ssl": self.config.ssl,
                "ssl_handshake_timeout": self._handshake_timeout_s,
                "ssl_shutdown_timeout": _TLS_CLOSE_S,
            }
        self.servers = [
            await loop.create_server(
                self._protocol, sock=listening, backlog=self.config.backlog, **tls
            )
            for listening in sockets or []
        ]
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state={}
        )
        return protocol

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: the process has its own."""
        yield


def _config(settings: GatewaySettings, app: ASGIApp) -> uvicorn.Config:
    tls = settings.tls
    config = uvicorn.Config(
        app,
        http=bounded_protocol(
            max_header_bytes=settings.max_header_bytes,
            timeouts=ConnectionTimeouts(
                head_s=settings.header_timeout_ms / 1000,
                body_s=settings.body_timeout_ms / 1000 + _BODY_GRACE_S,
                send_s=settings.send_timeout_ms / 1000 + _SEND_GRACE_S,
                idle_s=_IDLE_S,
            ),
            table=ConnectionTable(settings.max_connections, settings.max_connections_per_address),
        ),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ssl_certfile=tls.cert_file if tls else None,
        ssl_keyfile=tls.key_file if tls else None,
    )
    # uvicorn logs streams that end early as errors; the gateway ends failed streams that way.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    config.load()
    return config


def _listen(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of a host, IPv4 first, all on one port."""
    sockets: list[socket.socket] = []
    try:
        addresses = sorted(
            {
                (family, address)
                for name in _ADDRESSES.get(host, (host,))
                for family, _, _, _, address in socket.getaddrinfo(
                    name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )
            }
        )
        for family, (name, requested_port, *scope) in addresses:
            port_in_use = sockets[0].getsockname()[1] if sockets else requested_port
            address = (name, port_in_use, *scope)
            try:
                sockets.append(_bind(family, address, dual_stack=len(addresses) == 1))
            except OSError as error:  # a machine may have no IPv6
                if error.errno not in _NO_SUCH_ADDRESS or len(addresses) == 1:
                    raise
        if not sockets:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    except OSError as error:
        for listening in sockets:
            listening.close()
        raise SettingsError(f"gateway: cannot listen on {host}:{port}: {error.strerror}") from None
    return sockets


def _bind(family: int, address: tuple[Any, ...], *, dual_stack: bool) -> socket.socket:
    """Return a listening socket.

    Args:
        dual_stack: an IPv6 socket (`::`) accepts IPv4 connections, too.
    """
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not dual_stack:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening
