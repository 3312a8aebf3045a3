"""The announcement of a cluster: everybody on the network reads it, so it has no secrets.

Anybody can send one. It is a hint where to connect, never a reason to trust.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from shared.ids import name_from
from shared.settings.nats import ServerUrl
from shared.version import PROTOCOL

SERVICE_TYPE = "_mlx-nats._tcp.local."
Access = Literal["open", "token", "keys"]
_MAX_BYTES = 240
"""Of a value: a string of a TXT record has 255 bytes, key included."""
_SERVERS = TypeAdapter(list[ServerUrl])


class _Properties(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    protocol: Annotated[int, Field(ge=1, le=1_000_000)]
    cluster: Annotated[str, Field(max_length=_MAX_BYTES)] = ""
    id: Annotated[str, Field(min_length=1, max_length=_MAX_BYTES)]
    access: Access
    authority: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    servers: Annotated[str, Field(max_length=_MAX_BYTES)] = ""


@dataclass(frozen=True, slots=True)
class ClusterAnnouncement:
    """
    Attributes:
        cluster: its name, for people.
        id: the same in the announcements of all controllers of a cluster.
        access: what a connection requires: nothing, a token, or keys (`join`).
        authority: the SHA-256 of the certificate authority of its servers; empty without TLS.
        servers: URLs; empty for a server at the addresses of the announcing machine.
        port: of the server at those addresses.
    """

    cluster: str
    id: str
    access: Access
    servers: tuple[str, ...]
    port: int
    authority: str = ""
    protocol: int = PROTOCOL

    def properties(self) -> Mapping[str, str]:
        """Return the strings of the TXT record; servers that do not fit are left out."""
        return {
            "protocol": str(self.protocol),
            "cluster": self.cluster,
            "id": self.id,
            "access": self.access,
            "authority": self.authority,
            "servers": _joined(self.servers),
        }


def read_announcement(
    properties: Mapping[bytes, bytes | None], addresses: Sequence[str], port: int
) -> ClusterAnnouncement | None:
    """Return a received announcement; None if it is invalid, or of another protocol version.

    Args:
        addresses: of the announcing machine, used if the announcement names no servers.
    """
    try:
        read = {k.decode(): (v or b"").decode() for k, v in properties.items()}
        valid = _Properties.model_validate(read)
        servers = _SERVERS.validate_python([url for url in valid.servers.split(",") if url])
    except (ValidationError, UnicodeDecodeError):
        return None
    if valid.protocol != PROTOCOL or not (servers or addresses):
        return None
    own = [f"nats://{_in_url(address)}:{port}" for address in addresses]
    return ClusterAnnouncement(
        cluster=name_from(valid.cluster),
        id=valid.id,
        access=valid.access,
        servers=tuple(servers or own),
        port=port,
        authority=valid.authority,
    )


def _joined(servers: Sequence[str]) -> str:
    joined = ""
    for server in servers:
        longer = f"{joined},{server}" if joined else server
        if len(longer.encode()) > _MAX_BYTES:
            break
        joined = longer
    return joined


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
