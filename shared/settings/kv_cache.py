"""Settings of KV caches and sessions."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from shared.settings.base import SettingsSection


def _pattern(text: str) -> str:
    try:
        compiled = re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    if compiled.fullmatch(""):
        raise ValueError("must not match an empty line")
    return text


class PromptLineRule(SettingsSection):
    """`remove` the lines of a prompt that match `pattern` (a regular expression for the whole
    line), or `move` them to the end of their message."""

    pattern: Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_pattern)]
    action: Literal["remove", "move"] = "remove"
    roles: Annotated[
        list[Literal["system", "developer", "user", "assistant"]], Field(min_length=1)
    ] = ["system"]


class KvCacheSettings(SettingsSection):
    """`memory_mb` defaults to a quarter of the memory limit. `disk_mb` 0 caches nothing on disk.
    `disk_writes_mb_per_day` limits the wear of the disk by writes: with the default a disk of 1 TB
    lasts for years."""

    enabled: bool = True
    block_tokens: Annotated[int, Field(ge=16, le=4096)] = 256
    memory_mb: Annotated[int, Field(ge=0)] | None = None
    disk_mb: Annotated[int, Field(ge=0)] = 20_480
    disk_writes_mb_per_day: Annotated[int, Field(ge=0)] | None = 256_000
    disk_path: str | None = None
    bits: Literal["native"] | Literal[8] = "native"
    prompt_rules: Annotated[list[PromptLineRule], Field(max_length=32)] = []


class SessionRetentionSettings(SettingsSection):
    """The least recently used sessions of a client are deleted above `max_per_client`, or when the
    blocks that only sessions of this client use exceed `max_mb_per_client`. Sessions that were not
    used for `ttl_s` are deleted."""

    ttl_s: Annotated[int, Field(ge=1)] = 604_800
    max_per_client: Annotated[int, Field(ge=1, le=100_000)] = 1000
    max_mb_per_client: Annotated[int, Field(ge=1)] | None = None

    @property
    def max_bytes_per_client(self) -> int:
        return 2**62 if self.max_mb_per_client is None else self.max_mb_per_client * 1_000_000
