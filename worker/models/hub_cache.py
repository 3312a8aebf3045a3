"""The hub's cache on this machine, which other programs use as well.

Its layout (huggingface.co/docs/huggingface_hub/guides/manage-cache): contents are in `blobs` by
their ids, `snapshots/COMMIT` has links to them by file name, `refs` has the commits of branches.
This module writes contents and refs. If the hub can be reached, huggingface_hub creates the links,
and records what a complete snapshot contains.
"""

import os
import shutil
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.file_download import repo_folder_name

from shared.errors import ModelError
from worker.models.adapters import inspect_adapter, is_adapter
from worker.models.blob_download import BlobDownload
from worker.models.files import inspect
from worker.models.hub import NOT_NEEDED, HubListing, is_commit, needed_names, needed_patterns
from worker.peer_files.cached_files import relative_names


def folder() -> Path:
    return Path(constants.HF_HUB_CACHE).expanduser().resolve()


def complete_snapshot(repo: str, revision: str | None, *, code: bool) -> Path | None:
    """Return a complete snapshot in the cache; None without one."""
    try:
        snapshot = Path(
            snapshot_download(
                repo,
                revision=revision,
                local_files_only=True,
                allow_patterns=needed_patterns(code=code),
                ignore_patterns=NOT_NEEDED,
            )
        )
        # Checks completeness only.
        if is_adapter(snapshot):
            inspect_adapter(snapshot)
        else:
            inspect(snapshot, trust_remote_code=True)
    except (LocalEntryNotFoundError, ModelError):
        return None
    return snapshot


def size_bytes(snapshot: Path, *, code: bool) -> int:
    """Return the size of the files that a model needs; a snapshot may have others."""
    names = needed_names(relative_names(snapshot), code=code)
    return sum((snapshot / name).stat().st_size for name in names)


def blobs(listing: HubListing) -> dict[str, BlobDownload]:
    """Return the contents that a model needs, by file name. Files may share a content."""
    name = repo_folder_name(repo_id=listing.repo, repo_type="model")
    contents = folder() / name / "blobs"
    locks = folder() / ".locks" / name
    by_id = {
        file.content_id: BlobDownload(file, listing, contents, locks / f"{file.content_id}.lock")
        for file in listing.needed
    }
    return {file.name: by_id[file.content_id] for file in listing.needed}


def check_disk_space(missing_bytes: int) -> None:
    """Raise ModelError if the cache's disk has less free space than this."""
    existing = folder()
    while not existing.exists():
        existing = existing.parent
    free_bytes = shutil.disk_usage(existing).free
    if missing_bytes > free_bytes:
        raise ModelError(
            f"the download needs {missing_bytes / 1e9:.1f} GB, {free_bytes / 1e9:.1f} GB are free "
            f"on the disk at {folder()}; free disk space, or set HF_HUB_CACHE to another folder"
        )


def link(listing: HubListing, revision: str | None, *, code: bool, reached: bool) -> Path:
    """Create the snapshot of a listing whose contents are complete, and write the ref of
    `revision`; returns the snapshot.

    Args:
        reached: whether the hub can be reached.

    Raises:
        ModelError: the size of a file differs from the listing.
        Exception: any other error; see `hub_errors.describe`.
    """
    repository = folder() / repo_folder_name(repo_id=listing.repo, repo_type="model")
    snapshot = repository / "snapshots" / listing.commit
    if reached:
        snapshot_download(
            listing.repo,
            revision=listing.commit,
            allow_patterns=needed_patterns(code=code),
            ignore_patterns=NOT_NEEDED,
        )
    for file in listing.needed:
        path = snapshot / file.name
        if not reached and not os.path.lexists(path):
            _link(path, repository / "blobs" / file.content_id)
        found_bytes = path.stat().st_size if path.is_file() else 0
        if found_bytes != file.size_bytes:
            raise ModelError(
                f"{path} has {found_bytes} of {file.size_bytes} bytes; delete it, if it is there, "
                f"and fetch {listing.repo} again"
            )
    if not is_commit(revision):
        _write_ref(repository / "refs", revision or "main", listing.commit)
    return snapshot


def _link(path: Path, content: Path) -> None:
    """Link a file to its content. Safe if another process does the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    scratch.unlink(missing_ok=True)
    try:
        scratch.symlink_to(os.path.relpath(content, path.parent))
    except OSError:  # a file system without links
        shutil.copyfile(content, scratch)
    os.replace(scratch, path)


def _write_ref(refs: Path, revision: str, commit: str) -> None:
    """Write the ref of a complete snapshot. Until then the older ref stays usable offline."""
    path = refs / revision
    if path.is_file() and path.read_text() == commit:
        return  # a complete cache may be read-only
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    scratch.write_text(commit)
    os.replace(scratch, path)
