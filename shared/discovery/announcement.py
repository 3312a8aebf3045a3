"""What a cluster tells of itself: to everybody on the network, so no secret is in it.

It comes from whoever wants to send it. It is a hint where to ask, never a reason to trust.
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
_MOST_BYTES = 240
"""Of a value: a string of a TXT record has 255, key included."""
_SERVERS = TypeAdapter(list[ServerUrl])


class _Properties(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    protocol: Annotated[int, Field(ge=1, le=1_000_000)]
    cluster: Annotated[str, Field(max_length=_MOST_BYTES)] = ""
    id: Annotated[str, Field(min_length=1, max_length=_MOST_BYTES)]
    access: Access
    authority: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    servers: Annotated[str, Field(max_length=_MOST_BYTES)] = ""


@dataclass(frozen=True, slots=True)
class Announcement:
    """
    Attributes:
        cluster: its name, for people.
        id: the same from all controllers of a cluster.
        access: what it takes to get in: nothing, a token, or keys (`join`).
        authority: the SHA-256 of the certificate of who signs its servers'; empty without.
        servers: URLs; none where the addresses of who announces them are meant.
        port: at those.
    """

    cluster: str
    id: str
    access: Access
    servers: tuple[str, ...]
    port: int
    authority: str = ""
    protocol: int = PROTOCOL

    def properties(self) -> Mapping[str, str]:
        """As a TXT record has them; of too many servers the first."""
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
) -> Announcement | None:
    """What somebody announced; None where it is none of a cluster, or one of another protocol.

    Args:
        addresses: of who announces it, where it names no servers.
    """
    try:
        read = {k.decode(): (v or b"").decode() for k, v in properties.items()}
        told = _Properties.model_validate(read)
        servers = _SERVERS.validate_python([url for url in told.servers.split(",") if url])
    except (ValidationError, UnicodeDecodeError):
        return None
    if told.protocol != PROTOCOL or not (servers or addresses):
        return None
    own = [f"nats://{_in_url(address)}:{port}" for address in addresses]
    return Announcement(
        cluster=name_from(told.cluster),
        id=told.id,
        access=told.access,
        servers=tuple(servers or own),
        port=port,
        authority=told.authority,
    )


def _joined(servers: Sequence[str]) -> str:
    joined = ""
    for server in servers:
        longer = f"{joined},{server}" if joined else server
        if len(longer.encode()) > _MOST_BYTES:
            break
        joined = longer
    return joined


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
