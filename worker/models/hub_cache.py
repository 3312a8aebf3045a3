"""The hub's cache on this machine, which other programs use as well.

Its layout (huggingface.co/docs/huggingface_hub/guides/manage-cache): contents lie in `blobs` by
their ids, `snapshots/COMMIT` has links to them by the files' names, `refs` has the commits that
branches had. We write contents and refs; huggingface_hub links them, where the hub can be reached:
it notes then what a copy has to have.
"""

import os
import shutil
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.file_download import repo_folder_name

from shared.errors import ModelError
from worker.models.adapters import inspect_adapter, is_adapter
from worker.models.blob import Blob
from worker.models.files import inspect
from worker.models.hub import NOT_NEEDED, Listing, is_commit, needed_names, needed_patterns


def folder() -> Path:
    return Path(constants.HF_HUB_CACHE).expanduser().resolve()


def complete_snapshot(repo: str, revision: str | None, *, code: bool) -> Path | None:
    """A copy that needs nothing of the hub any more, or None."""
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
        # Only whether it is whole.
        if is_adapter(snapshot):
            inspect_adapter(snapshot)
        else:
            inspect(snapshot, trust_remote_code=True)
    except (LocalEntryNotFoundError, ModelError):
        return None
    return snapshot


def size_bytes(snapshot: Path, *, code: bool) -> int:
    """The bytes of the files that a model needs; a snapshot may have others."""
    names = needed_names(os.listdir(snapshot), code=code)
    return sum((snapshot / name).stat().st_size for name in names)


def blobs(listing: Listing) -> dict[str, Blob]:
    """The contents that a model needs, by the names of its files. Files may share one."""
    name = repo_folder_name(repo_id=listing.repo, repo_type="model")
    contents = folder() / name / "blobs"
    locks = folder() / ".locks" / name
    by_id = {
        file.content_id: Blob(file, listing, contents, locks / f"{file.content_id}.lock")
        for file in listing.needed
    }
    return {file.name: by_id[file.content_id] for file in listing.needed}


def check_room(missing_bytes: int) -> None:
    """Raises ModelError when the disk of the cache has no room for that many bytes."""
    existing = folder()
    while not existing.exists():
        existing = existing.parent
    free_bytes = shutil.disk_usage(existing).free
    if missing_bytes > free_bytes:
        raise ModelError(
            f"fetching it needs {missing_bytes / 1e9:.1f} GB, {free_bytes / 1e9:.1f} GB are free "
            f"on the disk at {folder()}; make room there, or set HF_HUB_CACHE to another folder"
        )


def link(listing: Listing, revision: str | None, *, code: bool, reached: bool) -> Path:
    """Make the snapshot of contents that are all there, and note which commit `revision` is.

    Args:
        reached: whether the hub can be asked.

    Raises:
        ModelError: a file in it does not have the size that the hub named.
        Exception: others, for `hub_errors.describe`.
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
    """Another process may do the same at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    scratch.unlink(missing_ok=True)
    try:
        scratch.symlink_to(os.path.relpath(content, path.parent))
    except OSError:  # a disk that knows no links
        shutil.copyfile(content, scratch)
    os.replace(scratch, path)


def _write_ref(refs: Path, revision: str, commit: str) -> None:
    """Only now, so that what an older ref names stays usable without a network until then."""
    path = refs / revision
    if path.is_file() and path.read_text() == commit:
        return  # so that a cache that is complete may be read-only
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    scratch.write_text(commit)
    os.replace(scratch, path)
