"""Settings of the HTTP gateway."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from shared.ids import NAME_PATTERN
from shared.settings.base import Count, Model, PositiveMilliseconds, SettingsSection

_AGE = re.compile(r"([1-9]\d{0,8})([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def _age(value: Any) -> Any:
    """Return seconds, also of a text such as `12h` or `30d`."""
    if not isinstance(value, str):
        return value
    if (found := _AGE.fullmatch(value.strip())) is None:
        raise ValueError("an age is a number of seconds, or a text such as 90s, 30m, 12h or 30d")
    return int(found[1]) * _SECONDS[found[2]]


Age = Annotated[int, BeforeValidator(_age), Field(ge=1, le=315_360_000)]


class StoredResponsesSettings(SettingsSection):
    """Responses that clients of OpenAI's Responses API store, in JetStream. Responses older than
    `max_age`, in seconds or as `12h` or `30d`, are deleted; responses above `max_bytes`, of all
    clients together, are not stored. A client with a key may use the part `client_share` of
    `max_bytes`; then its own oldest responses are deleted."""

    store: bool = True
    max_bytes: Annotated[int, Field(ge=100_000, le=1_000_000_000_000)] = 1_000_000_000
    client_share: Annotated[float, Field(gt=0, le=1)] = 0.25
    max_age: Age = 7 * 86_400


class GatewayTlsSettings(SettingsSection):
    """PEM files of the certificate for HTTP clients."""

    cert_file: str = Field(min_length=1)
    key_file: str = Field(min_length=1)


class GatewaySettings(SettingsSection):
    """The HTTP server. On an address that other machines can reach it requires API keys, of
    `keys_file` or else of `gateway keys add`, unless `allow_anonymous` is set.

    Without keys, only programs on this machine read `/metrics`, unless `anonymous_metrics` is set,
    and a request's Host header must be an address, a local name, this machine's name, `host` or one
    of `hosts`.

    `model_aliases`: a model name that a program requires → a model or a skill. `cors_origins`: web
    pages that may call the gateway (`["*"]`: all); none by default. `unknown_fields` of requests
    are ignored, and listed in the response header `x-ignored-fields`, or refused.
    `idle_timeout_ms`: the longest time of an answer without a token, and without progress before
    the first token. `max_connections_per_address`: of one IPv4 address or one IPv6 /64; at a limit
    a new connection takes the place of the one that has waited longest for its client.
    """

    id: str | None = Field(None, pattern=NAME_PATTERN)
    enabled: bool = False
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    keys_file: Annotated[str, Field(min_length=1)] | None = None
    allow_anonymous: bool = False
    anonymous_metrics: bool = False
    hosts: list[Annotated[str, Field(min_length=1, max_length=253)]] = []
    tls: GatewayTlsSettings | None = None
    cors_origins: list[Annotated[str, Field(min_length=1)]] = []
    model_aliases: dict[Model, Annotated[str, Field(min_length=1, max_length=256)]] = {}
    unknown_fields: Literal["ignore", "refuse"] = "ignore"
    responses: StoredResponsesSettings = StoredResponsesSettings()
    max_body_bytes: Annotated[int, Field(ge=1, le=64_000_000)] = 2_000_000
    max_header_bytes: Annotated[int, Field(ge=1024, le=1_000_000)] = 32_768
    max_connections: Count = 1024
    max_connections_per_address: Count = 512
    header_timeout_ms: PositiveMilliseconds = 10_000
    body_timeout_ms: PositiveMilliseconds = 30_000
    send_timeout_ms: PositiveMilliseconds = 30_000
    idle_timeout_ms: PositiveMilliseconds = 600_000
    keep_alive_ms: PositiveMilliseconds = 10_000
    drain_timeout_ms: PositiveMilliseconds = 30_000
