"""The memberships of this machine, stored from `join` until `leave`.

joined/<program>/membership.json   the user, the servers, and the user's seed
joined/<program>/seed.nk           the seed alone, as the NATS client reads it
joined/<program>/authority.crt     the certificate authority of the servers
"""

import shutil
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from shared.access.member_credentials import MemberCredentials
from shared.access.private_file import write_private
from shared.access.roles import Role
from shared.errors import SettingsError
from shared.folders import data_folder

MemberProgram = Literal["worker", "controller", "gateway", "cluster"]
"""The command that uses the membership; `cluster` does as an administrator or as a client."""

_MEMBERSHIP = "membership.json"
_SEED = "seed.nk"
_AUTHORITY = "authority.crt"


def member_program(role: Role) -> MemberProgram:
    match role:
        case "admin" | "client":
            return "cluster"
        case _:
            return role


def join(member: MemberCredentials) -> None:
    """Store a membership, in place of the previous one.

    Raises:
        SettingsError: a file cannot be written.
    """
    folder = _folder(member_program(member.role))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(folder / _SEED, member.seed.encode())
        if member.authority is None:
            (folder / _AUTHORITY).unlink(missing_ok=True)
        else:
            write_private(folder / _AUTHORITY, member.authority.encode())
        write_private(folder / _MEMBERSHIP, member.model_dump_json().encode())
    except OSError as error:
        raise SettingsError(f"{folder}: {error.strerror}") from None


def leave(program: MemberProgram) -> bool:
    """Delete the membership; return False if there is none."""
    folder = _folder(program)
    if not folder.exists():
        return False
    shutil.rmtree(folder)
    return True


def membership(program: MemberProgram) -> MemberCredentials | None:
    """Return the stored membership, or None.

    Raises:
        SettingsError: the stored membership is invalid.
    """
    path = _folder(program) / _MEMBERSHIP
    try:
        return MemberCredentials.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        again = "join again with a token of `cluster auth token`"
        raise SettingsError(f"{path} cannot be used; {again}") from None


def joined_settings(program: MemberProgram) -> dict[str, Any] | None:
    """Return the settings of the membership, as in cluster.yaml; None without a membership.

    Raises:
        SettingsError: as `membership`.
    """
    member = membership(program)
    if member is None:
        return None
    folder = _folder(program)
    nats: dict[str, Any] = {
        "servers": member.servers,
        "nkey_seed_file": str(folder / _SEED),
    }
    if member.authority is not None:
        nats["tls"] = {"ca_file": str(folder / _AUTHORITY)}
    security: dict[str, Any] = {"strict_inbox": True}
    if program == "cluster":
        return {"nats": nats, "security": {**security, "client": member.name}}
    return {"nats": nats, "security": security, program: {"id": member.name}}


def _folder(program: MemberProgram) -> Path:
    return data_folder() / "joined" / program
