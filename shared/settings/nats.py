"""Settings of the connection to NATS, and of discovery."""

import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
)

from shared.ids import NAME_PATTERN
from shared.settings.base import Count, SettingsSection


class ClientIsolationSettings(SettingsSection):
    """`strict_inbox`: reply subjects must be below `_INBOX.<client>.`, which the server's
    permissions enforce; set it if the server authenticates. A client may then have at most
    `max_requests_per_client` unfinished requests, which take at most `max_request_mb_per_client`
    of the leader's memory, parsed; those of all clients take at most `max_request_mb`. `client`:
    the client name of commands."""

    strict_inbox: bool = False
    max_requests_per_client: Count = 1000
    max_request_mb_per_client: Annotated[int, Field(ge=1)] = 256
    max_request_mb: Annotated[int, Field(ge=1)] = 1024
    client: Annotated[str, Field(pattern=NAME_PATTERN)] = "local"


class TlsSettings(SettingsSection):
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


def _server_url(url: str) -> str:
    """Raise ValueError if `url` is not a NATS URL; the error does not show the URL, which may have
    a password."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    if parts.scheme not in ("nats", "tls", "ws", "wss"):
        raise ValueError("a server is nats://HOST:PORT, tls://, ws:// or wss://")
    if not parts.hostname:
        raise ValueError("a server needs a host: nats://HOST:PORT")
    try:
        parts.port  # noqa: B018  (checked when it is read)
    except ValueError:
        raise ValueError("a server's port is a number up to 65535: nats://HOST:PORT") from None
    return url


ServerUrl = Annotated[str, AfterValidator(_server_url)]


class NatsSettings(SettingsSection):
    servers: Annotated[list[ServerUrl], Field(min_length=1)] = ["nats://127.0.0.1:4222"]
    token: SecretStr | None = None
    user_credentials: str | None = None
    nkey_seed_file: str | None = None
    tls: TlsSettings | None = None


def address(text: str) -> str:
    ipaddress.ip_address(text)
    return text


class DiscoverySettings(SettingsSection):
    """Controllers announce their cluster on the local network, and workers without a configured
    NATS server search for one. `interfaces`: the addresses of this machine to use; by default
    all."""

    enabled: bool = True
    interfaces: list[Annotated[str, AfterValidator(address)]] = []
