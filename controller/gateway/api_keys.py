"""API keys: who may call, and how much. Kept as hashes in a YAML file that may change at any time.

A key has 256 random bits, so a plain SHA-256 of it cannot be turned back, and looking it up by
its hash tells nothing about others.
"""

import hashlib
import logging
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.codec import first_problem
from shared.errors import ClusterError, SettingsError
from shared.folders import data_folder
from shared.ids import LOCAL_CLIENT, NAME_PATTERN, ClientName
from shared.messages.priorities import Priority

logger = logging.getLogger(__name__)

KEY_PREFIX = "mlx-"


def default_keys_file() -> Path:
    """Where keys are kept unless a file is named."""
    return data_folder() / "keys.yaml"


_Limit = Annotated[int, Field(ge=1, le=1_000_000_000)]


class ApiKey(BaseModel):
    """What a key allows; None is no limit.

    Attributes:
        client: the name under which its requests are sent.
        models: the models and skills it may ask for.
        max_priority: the highest it may ask for.
        admin: whether it may read the metrics, which name all clients.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    client: Annotated[ClientName, Field(pattern=NAME_PATTERN)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = ""
    models: Annotated[list[str], Field(min_length=1)] | None = None
    max_priority: Priority = "high"
    requests_per_minute: _Limit | None = None
    tokens_per_minute: _Limit | None = None
    max_concurrent: _Limit | None = None
    admin: bool = False


ANONYMOUS = ApiKey.model_construct(
    client=ClientName(LOCAL_CLIENT), sha256="", models=None, max_priority="high",
    requests_per_minute=None, tokens_per_minute=None, max_concurrent=None, admin=True,
)  # fmt: skip
"""Whoever calls where no keys are asked for."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: list[ApiKey] = []


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def read_keys(path: Path) -> list[ApiKey]:
    """The keys of a file.

    Raises:
        SettingsError: it cannot be read, or something in it is wrong.
    """
    try:
        body = yaml.safe_load(path.read_bytes())
        keys = _File.model_validate(body if body is not None else {}).keys
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: no YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        _, message = first_problem(error)
        raise SettingsError(f"{path}: {message}") from None
    for key in keys:
        if not key.sha256:
            raise SettingsError(f"{path}: the key of {key.client} has no sha256")
    return keys


def write_keys(path: Path, keys: list[ApiKey]) -> None:
    """Replace the file in one step, readable by its owner only.

    Raises:
        SettingsError: it cannot be written.
    """
    body = yaml.safe_dump(
        {"keys": [key.model_dump(exclude_defaults=True) for key in keys]}, sort_keys=False
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w") as file:
            file.write("# API keys of the gateway, as hashes. Change it with `gateway keys`.\n")
            file.write(body)
        Path(name).replace(path)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None


class KeyRing:
    """The keys in force: those of a file, read again when it changes, or none at all.

    Args:
        path: None where everybody may call.

    Raises:
        SettingsError: as `read_keys`.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._keys: Mapping[str, ApiKey] = {}
        if path is not None:
            self._stamp = _stamp(path)
            self._keys = {key.sha256: key for key in read_keys(path)}

    @property
    def asked_for(self) -> bool:
        """Whether a caller needs a key."""
        return self._path is not None

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, key: str | None) -> ApiKey:
        """The entry of a key that a caller showed.

        Raises:
            ClusterError: it is missing or unknown.
        """
        if self._path is None:
            return ANONYMOUS
        if not key:
            raise ClusterError(
                "an API key is needed: `Authorization: Bearer <key>` or `x-api-key: <key>`",
                code="unauthenticated",
            )
        found = self._keys.get(hashed(key))
        if found is None:
            raise ClusterError("this API key is not known here", code="unauthenticated")
        return found

    def refresh(self) -> None:
        """Read the file again if it changed; what cannot be read changes nothing."""
        if self._path is None or (stamp := _stamp(self._path)) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = {key.sha256: key for key in read_keys(self._path)}
        except SettingsError as error:
            logger.error("the API keys stay as they were: %s", error.message)
        else:
            logger.info("%d API keys read from %s", len(self._keys), self._path)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
