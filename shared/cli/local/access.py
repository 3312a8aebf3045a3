"""Who may take part in a cluster on this machine, and what each of its processes proves it with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import SecretStr

from shared.access.roles import Role
from shared.settings.nats import NatsSettings


class LocalAccess(Protocol):
    """What the NATS server of a cluster asks, and what its processes answer."""

    @property
    def server_settings(self) -> Mapping[str, Any]:
        """Of the NATS server, beside its sizes."""

    def nats(self, server: str, role: Role, name: str) -> NatsSettings:
        """How the one of that role and name connects to the server at that URL."""


@dataclass(frozen=True, slots=True)
class SharedToken:
    """One token for all; None: everybody may take part."""

    token: str | None

    @property
    def server_settings(self) -> Mapping[str, Any]:
        return {"authorization": {"token": self.token}} if self.token is not None else {}

    def nats(self, server: str, role: Role, name: str) -> NatsSettings:
        token = SecretStr(self.token) if self.token is not None else None
        return NatsSettings(servers=[server], token=token)


def variables(nats: NatsSettings) -> dict[str, str]:
    """How to prove who one is, as settings in the environment of a process; not where to."""
    found = {}
    if nats.token is not None:
        found["CLUSTER__NATS__TOKEN"] = nats.token.get_secret_value()
    if nats.nkey_seed_file is not None:
        found["CLUSTER__NATS__NKEY_SEED_FILE"] = nats.nkey_seed_file
    if nats.tls is not None:
        found["CLUSTER__NATS__TLS"] = nats.tls.model_dump_json(exclude_none=True)
    return found
