"""API keys: who may call, and with which limits. A YAML file has their hashes.

A key has 256 random bits, so a plain SHA-256 hash of it cannot be reversed, and the time of a
lookup by hash reveals nothing about other keys.
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
from shared.messages.base import Priority

logger = logging.getLogger(__name__)

KEY_PREFIX = "mlx-"


def default_keys_file() -> Path:
    """Return the path of the keys file without `gateway.keys_file`."""
    return data_folder() / "keys.yaml"


_Limit = Annotated[int, Field(ge=1, le=1_000_000_000)]


class ApiKey(BaseModel):
    """An API key and its limits; None: no limit.

    Attributes:
        client: the client name of the requests that the gateway publishes for the key.
        models: the models and skills that requests may name.
        max_priority: the highest priority that requests may have.
        admin: whether the key may read the metrics, which name all clients.
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
"""Every caller of a gateway that requires no keys."""


class _KeysFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: list[ApiKey] = []


def hash_key(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def read_keys(path: Path) -> list[ApiKey]:
    """Return the keys of a file.

    Raises:
        SettingsError: the file cannot be read, or is invalid.
    """
    try:
        body = yaml.safe_load(path.read_bytes())
        keys = _KeysFile.model_validate(body if body is not None else {}).keys
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: invalid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        _, message = first_problem(error)
        raise SettingsError(f"{path}: {message}") from None
    for key in keys:
        if not key.sha256:
            raise SettingsError(f"{path}: the key of {key.client} has no sha256")
    return keys


def write_keys(path: Path, keys: list[ApiKey]) -> None:
    """Replace the file atomically; only its owner can read it.

    Raises:
        SettingsError: the file cannot be written.
    """
    body = yaml.safe_dump(
        {"keys": [key.model_dump(exclude_defaults=True) for key in keys]}, sort_keys=False
    )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w") as file:
            file.write("# API keys of the gateway, as hashes. Change it with `gateway keys`.\n")
            file.write(body)
        Path(name).replace(path)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None


class ApiKeyRing:
    """The valid keys: those of a file, which `refresh` reads again when it changed.

    Args:
        path: None if no key is required.

    Raises:
        SettingsError: as `read_keys`.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file_version: tuple[int, int, int] | None = None
        self._keys: Mapping[str, ApiKey] = {}
        if path is not None:
            self._file_version = _file_version(path)
            self._keys = {key.sha256: key for key in read_keys(path)}

    @property
    def requires_key(self) -> bool:
        """Whether callers need a key."""
        return self._path is not None

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, key: str | None) -> ApiKey:
        """Return the entry of a caller's key.

        Raises:
            ClusterError: `unauthenticated`: the key is missing or unknown.
        """
        if self._path is None:
            return ANONYMOUS
        if not key:
            raise ClusterError(
                "an API key is required: `Authorization: Bearer <key>` or `x-api-key: <key>`",
                code="unauthenticated",
            )
        entry = self._keys.get(hash_key(key))
        if entry is None:
            raise ClusterError("unknown API key", code="unauthenticated")
        return entry

    def refresh(self) -> None:
        """Read the file again if it changed. Keep the current keys if the file is invalid."""
        if self._path is None or (version := _file_version(self._path)) == self._file_version:
            return
        self._file_version = version
        try:
            self._keys = {key.sha256: key for key in read_keys(self._path)}
        except SettingsError as error:
            logger.error(
                "cannot read the API keys again, the current ones stay valid: %s", error.message
            )
        else:
            logger.info("read %d API keys from %s", len(self._keys), self._path)


def _file_version(path: Path) -> tuple[int, int, int] | None:
    """Return modification time, size and inode; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
