"""Backup and restore of the access folder: all files that cannot be generated again."""

import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from shared.access.folder import AccessFolder
from shared.access.private_file import write_private
from shared.errors import SettingsError

_EXCLUDED = ("jetstream", "nats-server.pid", "nats-server.json", ".lock")
"""Generated again, or of a running server."""
_MAX_BYTES = 64 * 1024 * 1024


def back_up(access: AccessFolder, file: Path) -> None:
    """Write an archive that only its owner can read.

    Raises:
        SettingsError: the file cannot be written, or exists already.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
            for path in _files(access.path):
                archive.add(path, arcname=str(path.relative_to(access.path)), recursive=False)
    except FileExistsError:
        raise SettingsError(f"{file} exists already") from None
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from None


def restore(file: Path, folder: Path) -> AccessFolder:
    """Create the folder from an archive, and return it.

    Raises:
        SettingsError: the file cannot be read, is not such an archive, or the folder exists.
    """
    if folder.exists():
        raise SettingsError(f"{folder} exists already: move it away first")
    scratch = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
        with tarfile.open(file, mode="r:gz") as archive:
            _unpack(archive, scratch)
        AccessFolder(scratch)
        scratch.rename(folder)
    except (OSError, tarfile.TarError, EOFError, SettingsError) as error:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        why = error.strerror if isinstance(error, OSError) and error.strerror else "no such copy"
        raise SettingsError(f"{file}: {why}") from None
    access = AccessFolder(folder)
    with access.changing():  # writes the new path into the server's configuration
        pass
    return access


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part.endswith(_EXCLUDED) for part in parts):
            yield path


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract the files, which only their owner can read.

    Raises:
        SettingsError: an entry is not a file below the folder, or there are too many bytes.
    """
    total_bytes = 0
    for member in archive:
        path = PurePosixPath(member.name)
        total_bytes += member.size
        content = archive.extractfile(member) if member.isfile() else None
        if content is None or path.is_absolute() or ".." in path.parts or total_bytes > _MAX_BYTES:
            raise SettingsError(f"{member.name!r} is not a file of such a folder")
        target = folder / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(target, content.read())
