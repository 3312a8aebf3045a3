"""Listing of a repository of the Hugging Face hub, and the files of it that a model needs."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import RepoSibling

from shared.errors import ModelError
from worker.models import adapters
from worker.models.files import WEIGHTS, is_weights
from worker.models.hub_errors import endpoint

_TEMPLATES = "additional_chat_templates"
"""Named chat templates beside the default one."""
_MODULE = "[0-9]_*"
"""Folders of sentence-transformers, such as 1_Pooling: what follows the network of an embedding
model. No other folder is read."""
_NEEDED = [
    "*.json", "*.jsonl", "*.jinja", "*.txt", "*.model", "*.tiktoken", WEIGHTS, *adapters.WEIGHTS,
    f"{_MODULE}/model.safetensors",
]  # fmt: skip
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CONTENT_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository.

    Attributes:
        content_id: the SHA-256 of a large file, or the git blob id of another one. The hub's ETag,
            and the file's name in the cache.
    """

    name: str
    size_bytes: int
    content_id: str

    @property
    def is_weights(self) -> bool:
        return is_weights(self.name)


@dataclass(frozen=True, slots=True)
class HubListing:
    """The files of a repository at one commit.

    Attributes:
        names: names of all files.
        needed: the files that mlx-lm reads.
    """

    repo: str
    commit: str
    names: tuple[str, ...]
    needed: tuple[HubFile, ...]


def _other_folders(folder: str) -> Iterator[str]:
    """Yield patterns of all files in other folders than this one and those of `_MODULE`, and in
    their subfolders."""
    for end, character in enumerate(folder):
        digits = "" if end else "0-9"
        yield f"{folder[:end]}[!{character}{digits}/]*/*"
        yield f"{folder[:end]}/*"
    yield f"{folder}[!/]*/*"
    yield f"{folder}/*/*"
    yield from ("[0-9][!_]*/*", "[0-9]/*", f"{_MODULE}/*/*")


NOT_NEEDED = list(_other_folders(_TEMPLATES))


def needed_patterns(*, code: bool) -> list[str]:
    """Return the patterns of files that mlx-lm reads; `NOT_NEEDED` excludes other folders."""
    return [*_NEEDED, "*.py"] if code else _NEEDED


def needed_names(names: Iterable[str], *, code: bool) -> list[str]:
    """Return the names of files that mlx-lm reads, sorted."""
    patterns = needed_patterns(code=code)
    return sorted(
        name
        for name in names
        if any(fnmatchcase(name, pattern) for pattern in patterns)
        and not any(fnmatchcase(name, pattern) for pattern in NOT_NEEDED)
    )


def is_commit(revision: str | None) -> bool:
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def fetch_listing(repo: str, revision: str | None, *, code: bool) -> HubListing:
    """Request the listing of a repository from the hub.

    Raises:
        ModelError: the response is not that of a hub.
        Exception: any other error; see `hub_errors.describe`.
    """
    try:
        info = HfApi().model_info(
            repo, revision=revision, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
        siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
        needed = [_file(siblings[name]) for name in needed_names(siblings, code=code)]
    except HfHubHTTPError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _not_a_hub() from None
    if not is_commit(info.sha):
        raise _not_a_hub()
    return HubListing(repo, str(info.sha), tuple(siblings), tuple(needed))


def _file(sibling: RepoSibling) -> HubFile:
    """Raise ValueError if the hub's listing lacks the size or id of a file."""
    size_bytes = sibling.lfs.size if sibling.lfs else sibling.size
    content_id = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    if not isinstance(size_bytes, int) or size_bytes < 0:
        raise ValueError("no size")
    # The id becomes the name of a file, so it must not be a path.
    if not isinstance(content_id, str) or not _CONTENT_ID.fullmatch(content_id):
        raise ValueError("no id")
    return HubFile(sibling.rfilename, size_bytes, content_id)


def _not_a_hub() -> ModelError:
    return ModelError(
        f"{endpoint()} does not answer like a Hugging Face hub; check HF_ENDPOINT and proxies"
    )
