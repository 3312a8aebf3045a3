"""Location of the files of a model and its adapter: a folder, the demo model, or a Hugging Face
repository."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ModelError
from shared.ids import ModelId, is_hub_id
from shared.settings.base import DEMO_MODEL
from shared.settings.models import ModelSettings
from worker.models import demo_model
from worker.models.adapters import base_of, inspect_adapter, is_adapter

Fetch = Callable[[str, str | None], Awaitable[Path]]
"""Downloads a revision of a hub repository; returns its folder, or raises ModelError."""


@dataclass(frozen=True, slots=True)
class ModelAndAdapterFolders:
    """The folders of a model and of its adapter, if it has one."""

    folder: Path
    adapter: Path | None = None


async def find_files(model: ModelId, source: ModelSettings, fetch: Fetch) -> ModelAndAdapterFolders:
    """Return the folders of a model, and download them if they are not on this machine. A source
    that is only an adapter, here or on the hub, stands for its base model with that adapter.

    Raises:
        ModelError: the model or the adapter does not exist, or cannot be downloaded.
    """
    source = with_base(model, source)
    folder = local_folder(model, source)
    if folder is None:
        folder = await fetch(source.path, source.revision)
        if is_adapter(folder):
            fetched = source.model_copy(update={"path": str(folder), "revision": None})
            return await find_files(model, fetched, fetch)
    if source.adapter is None:
        return ModelAndAdapterFolders(folder)
    adapter = _local(source.adapter)
    if adapter is None:
        if not is_hub_id(source.adapter):
            raise ModelError(
                f"model {model}: adapter: {source.adapter} is neither a folder nor a Hugging Face "
                "id (owner/name)"
            )
        adapter = await fetch(source.adapter, None)
    await asyncio.to_thread(inspect_adapter, adapter)
    return ModelAndAdapterFolders(folder, adapter)


def with_base(model: ModelId, source: ModelSettings) -> ModelSettings:
    """Return the source; if its path is only an adapter, a source of the base model with it.

    Raises:
        ModelError: the base model is unknown, or there would be two adapters.
    """
    folder = _local(source.path)
    if folder is None or not is_adapter(folder):
        return source
    if source.adapter is not None:
        raise ModelError(
            f"model {model}: {folder} is itself an adapter, and a model has one adapter at most; "
            "set `path` to the base model"
        )
    base = base_of(folder)
    # mlx-lm writes the path as the user typed it, relative to the folder of the training.
    known = _local(base) or _local(str(folder / base)) or _local(str(folder.parent / base))
    if known is None and base != DEMO_MODEL and not is_hub_id(base):
        raise ModelError(
            f"model {model}: {folder} is an adapter, and its base model {base} is not on this "
            "machine; set `path` to the base model and `adapter` to this folder"
        )
    path = str(known) if known is not None else base
    return source.model_copy(update={"path": path, "adapter": str(folder), "revision": None})


def local_folder(model: ModelId, source: ModelSettings) -> Path | None:
    """Return the folder on this machine; None for a Hugging Face id. The path `demo` is the
    built-in model, under any alias.

    Raises:
        ModelError: the source is neither.
    """
    try:
        path = Path(source.path).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
        if is_folder and not (path / "config.json").is_file():
            raise ModelError(
                f"model {model}: {path} has no config.json, so it is not a model folder"
            )
    except (OSError, RuntimeError, ValueError) as error:  # no such user, too long, a zero byte
        raise ModelError(f"model {model}: {source.path!r} is not a valid path: {error}") from None
    if is_folder:
        return path
    if source.path == DEMO_MODEL:
        if not demo_model.is_present():
            raise ModelError("model demo: it is not on this machine; run: worker --fetch demo")
        return demo_model.folder()
    if exists or source.path.startswith(("/", "~", ".")) or not is_hub_id(source.path):
        raise ModelError(
            f"model {model}: {source.path} is not a folder, a Hugging Face id (owner/name) or an "
            "alias under `models` in cluster.yaml"
        )
    return None


def _local(path: str) -> Path | None:
    """Return the path of a folder on this machine; None if it is not one."""
    try:
        folder = Path(path).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # no such user, too long, a zero byte
        return None
