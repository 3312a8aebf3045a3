"""The files of a repository in this machine's cache of the hub.

Its layout: huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

import contextlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants

_CONTENT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MAX_CONTENTS = 4096
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class CachedFiles:
    """The cached contents of a repository, and the files of one of its revisions.

    Attributes:
        contents: the paths of complete contents, by id.
        sizes_bytes: the sizes of the contents, by id.
        commit: the commit of the requested revision; empty if unknown here.
        files: the content ids of that commit's files, by name; those in folders of the top folder
            have the name of the folder before theirs.
    """

    contents: Mapping[str, Path]
    sizes_bytes: Mapping[str, int]
    commit: str
    files: Mapping[str, str]


def hub_cache() -> Path:
    """Return the folder of the hub's cache on this machine."""
    return Path(constants.HF_HUB_CACHE).expanduser()


def find_cached_files(cache: Path, repo: str, revision: str | None) -> CachedFiles:
    """Return what the cache has of a repository.

    Args:
        repo: an id of the hub, owner/name.
    """
    folder = cache / f"models--{repo.replace('/', '--')}"
    contents = {}
    sizes_bytes = {}
    for path in _paths(folder / "blobs"):
        with contextlib.suppress(OSError):  # deleted meanwhile
            status = path.stat()
            if _CONTENT.fullmatch(path.name) and stat.S_ISREG(status.st_mode):
                contents[path.name], sizes_bytes[path.name] = path, status.st_size
    commit = _commit(folder / "refs", revision)
    files = _files(folder / "snapshots" / commit) if commit else {}
    return CachedFiles(contents, sizes_bytes, commit, files)


def _paths(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[:_MAX_CONTENTS]
    except OSError:
        return []


def _commit(refs: Path, revision: str | None) -> str:
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    known = {path.relative_to(refs).as_posix(): path for path in refs.rglob("*") if path.is_file()}
    try:
        commit = known[revision or "main"].read_text().strip()
    except (KeyError, OSError, ValueError):
        return ""
    return commit if _COMMIT.fullmatch(commit) else ""


def _files(snapshot: Path) -> Mapping[str, str]:
    """Return the content ids of files that are links to contents, by name; empty on a file system
    without links."""
    try:
        names = relative_names(snapshot)
        linked = {name: os.readlink(snapshot / name) for name in names if _is_link(snapshot / name)}
    except OSError:
        return {}
    ids = {name: Path(target).name for name, target in linked.items()}
    return {name: content for name, content in ids.items() if _CONTENT.fullmatch(content)}


def relative_names(folder: Path) -> list[str]:
    """Return the names of the files in a folder, and in its folders as `folder/file`.

    Raises:
        OSError: a folder cannot be read.
    """
    names = []
    for name in sorted(os.listdir(folder)):
        if (folder / name).is_dir():
            names += [f"{name}/{each}" for each in sorted(os.listdir(folder / name))]
        else:
            names.append(name)
    return names


def _is_link(path: Path) -> bool:
    return path.is_symlink() and path.is_file()
