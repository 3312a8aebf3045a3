"""Where the files of a model are: a folder, the demo model's, or a Hugging Face repository."""

from pathlib import Path

from shared.errors import ModelError
from shared.ids import ModelId
from shared.settings.tree import DEMO_MODEL, ModelSource
from worker import demo_model
from worker.models.download import is_hub_id


def local_folder(model: ModelId, source: ModelSource) -> Path | None:
    """The folder on this machine; None for a Hugging Face id, whose files are to be fetched. The
    path `demo` is the built-in model's, under any alias.

    Raises:
        ModelError: the source is neither.
    """
    try:
        path = Path(source.path).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
        if is_folder and not (path / "config.json").is_file():
            raise ModelError(f"model {model}: {path} has no config.json, so it is no model folder")
    except (OSError, RuntimeError, ValueError) as error:  # no such user, too long, a zero byte
        raise ModelError(f"model {model}: {source.path!r} is no usable path: {error}") from None
    if is_folder:
        return path
    if source.path == DEMO_MODEL:
        if not demo_model.is_present():
            raise ModelError("model demo: it is not on this machine; run: worker --fetch demo")
        return demo_model.folder()
    if exists or source.path.startswith(("/", "~", ".")) or not is_hub_id(source.path):
        raise ModelError(
            f"model {model}: {source.path} is no folder, no Hugging Face id (owner/name) and "
            "no alias under `models` in cluster.yaml"
        )
    return None
