"""What the stand-in for the hub has: repositories of files."""

import hashlib
from dataclasses import dataclass, field
from typing import Any, Self

_LARGE = (".safetensors", ".bin", ".gguf")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a repository, and what the hub says of it."""

    content: bytes
    size_bytes: int
    git_id: str
    sha256: str | None  # of large files only

    @property
    def etag(self) -> str:
        return self.sha256 or self.git_id

    def lfs(self, hash_key: str) -> dict[str, Any]:
        """What the hub's answers say only of large files."""
        if self.sha256 is None:
            return {}
        return {"lfs": {hash_key: self.sha256, "size": self.size_bytes, "pointerSize": 134}}

    @classmethod
    def of(cls, name: str, content: bytes) -> Self:
        git_id = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        sha256 = hashlib.sha256(content).hexdigest() if name.endswith(_LARGE) else None
        return cls(content, len(content), git_id, sha256)


@dataclass(slots=True)
class Repository:
    """`gated`: everybody may see what it has, but not the files; `private`: nothing."""

    gated: bool
    private: bool
    commits: dict[str, dict[str, StoredFile]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.branches.get(revision)
