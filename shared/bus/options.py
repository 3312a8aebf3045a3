"""The options of the NATS client, from our settings."""

import ssl
from pathlib import Path
from typing import Any

from shared.errors import SettingsError
from shared.settings.nats import NatsSettings, TlsSettings

REPLICAS = 3
"""Requested first."""
NOT_CLUSTERED = 10074
"""The error code of a server outside a NATS cluster, which cannot replicate a stream."""


RECONNECT_WAIT_S = 0.25
PING_INTERVAL_S = 10
CONNECT_TIMEOUT_S = 3
FLUSH_TIMEOUT_S = 5
"""Without it a publish can block forever when 2 MB are pending and the server stalls."""


def client_options(settings: NatsSettings, *, name: str, inbox_prefix: str) -> dict[str, Any]:
    """Return the keyword arguments of `nats.aio.client.Client.connect`.

    Raises:
        SettingsError: a credentials or TLS file is missing or unusable.
    """
    options: dict[str, Any] = {
        "servers": list(settings.servers),
        "name": name,
        "inbox_prefix": inbox_prefix,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "reconnect_time_wait": RECONNECT_WAIT_S,
        "max_reconnect_attempts": -1,
        "ping_interval": PING_INTERVAL_S,
        "flush_timeout": FLUSH_TIMEOUT_S,
    }
    if settings.token is not None:
        options["token"] = settings.token.get_secret_value()
    if settings.user_credentials is not None:
        options["user_credentials"] = _existing("nats.user_credentials", settings.user_credentials)
    if settings.nkey_seed_file is not None:
        options["nkeys_seed"] = _existing("nats.nkey_seed_file", settings.nkey_seed_file)
    if settings.tls is not None:
        options["tls"] = _ssl_context(settings.tls)
    return options


def _existing(key: str, name: str) -> str:
    path = Path(name).expanduser()
    if not path.is_file():
        raise SettingsError(f"{key}: no such file: {path}", param=key)
    return str(path)


def _ssl_context(tls: TlsSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"nats.tls: {error}", param="nats.tls") from None
    return context
