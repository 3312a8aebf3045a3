"""Identifiers: one type per kind, their generation, and their allowed spellings."""

import re
import secrets
from typing import NewType

RequestId = NewType("RequestId", str)
SessionId = NewType("SessionId", str)
ClientName = NewType("ClientName", str)
SkillName = NewType("SkillName", str)
ModelId = NewType("ModelId", str)
WorkerId = NewType("WorkerId", str)
ControllerId = NewType("ControllerId", str)
SessionKey = tuple[ClientName, str]
"""Clients choose session ids, so only the pair is unique."""
BootId = NewType("BootId", str)
"""One run of a process: a restarted worker keeps its WorkerId and gets a new BootId."""

LOCAL_CLIENT = ClientName("local")
"""The client name on a server without authentication."""

NAME_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
"""Names of clients, workers, controllers and skills: each is one token of a subject."""

MAX_ID_LENGTH = 128
ID_PATTERN = r"^[!-~]{1,128}$"
"""Ids of requests and sessions: 1 to 128 visible ASCII characters."""

DERIVED_SESSION = "auto-"
"""Prefix of the session ids under which workers cache requests that have only an affinity."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_HUB_PART_LENGTH = 96
_HUB_PART = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?")


def is_name(text: str) -> bool:
    """Whether `text` can name a client, worker, controller or skill."""
    return _NAME.fullmatch(text) is not None


def name_from(text: str) -> str:
    """Return the nearest allowed name, for example of a host: `Ada's Mac.local` -> `Ada-s-Mac`."""
    first_label = text.split(".", 1)[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", first_label).strip("-")[:64] or "node"


def new_request_id() -> RequestId:
    return RequestId(f"req-{secrets.token_hex(12)}")


def new_boot_id() -> BootId:
    return BootId(secrets.token_hex(8))


def is_hub_id(text: str) -> bool:
    """Whether `text` can be an id on the Hugging Face hub: `owner/name`, in the spelling that
    huggingface_hub accepts."""
    parts = text.split("/")
    return (
        len(parts) == 2
        and all(_HUB_PART.fullmatch(part) and len(part) <= _MAX_HUB_PART_LENGTH for part in parts)
        and ".." not in text
        and "--" not in text
        and not text.endswith(".git")
    )
