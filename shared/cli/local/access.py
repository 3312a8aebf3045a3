"""Access control of a cluster on this machine, and the credentials of its processes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import SecretStr

from shared.access.roles import Role
from shared.settings.nats import NatsSettings


class LocalAccessControl(Protocol):
    """Access settings of the NATS server, and of the processes that connect to it."""

    @property
    def server_settings(self) -> Mapping[str, Any]:
        """Settings of the NATS server that control access."""

    def nats(self, server: str, role: Role, name: str) -> NatsSettings:
        """Return how the process of this role and name connects to the server at this URL."""


@dataclass(frozen=True, slots=True)
class SharedToken:
    """One token for all processes; None: no authentication."""

    token: str | None

    @property
    def server_settings(self) -> Mapping[str, Any]:
        return {"authorization": {"token": self.token}} if self.token is not None else {}

    def nats(self, server: str, role: Role, name: str) -> NatsSettings:
        token = SecretStr(self.token) if self.token is not None else None
        return NatsSettings(servers=[server], token=token)


def credential_variables(nats: NatsSettings) -> dict[str, str]:
    """Return the credentials in `nats` as environment variables; server URLs are left out."""
    variables = {}
    if nats.token is not None:
        variables["CLUSTER__NATS__TOKEN"] = nats.token.get_secret_value()
    if nats.nkey_seed_file is not None:
        variables["CLUSTER__NATS__NKEY_SEED_FILE"] = nats.nkey_seed_file
    if nats.tls is not None:
        variables["CLUSTER__NATS__TLS"] = nats.tls.model_dump_json(exclude_none=True)
    return variables
