"""Which models this worker knows, where they come from, and what state they are in."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import ModelError
from shared.ids import ModelId
from shared.messages.events import ModelState, ModelStatus
from shared.settings.tree import DEMO_MODEL, ClusterSettings, ModelSource
from worker import demo_model
from worker.link.messages import LoadModel


@dataclass(slots=True)
class Model:
    """One model of the catalogue.

    Attributes:
        requested: the engines were told to load it.
        engines: those that hold it.
        deaths: how often an engine died while it loaded this.
    """

    id: ModelId
    source: ModelSource
    state: ModelState = "available"
    progress: float | None = None
    error: str | None = None
    max_context_tokens: int | None = None
    requested: bool = False
    engines: set[int] = field(default_factory=set)
    deaths: int = 0

    def status(self, active_requests: int) -> ModelStatus:
        return ModelStatus(
            id=self.id,
            state=self.state,
            progress=self.progress,
            error=self.error,
            active_requests=active_requests,
            max_context_tokens=self.max_context_tokens,
        )

    def load_order(self) -> LoadModel:
        """The order that makes an engine load this model.

        Raises:
            ModelError: the source is no folder and no Hugging Face id.
        """
        return LoadModel(
            model=self.id,
            path=_resolve(self.id, self.source),
            max_context_tokens=self.source.max_context_tokens,
            trust_remote_code=self.source.trust_remote_code,
        )


class ModelCatalogue:
    """The models that settings name, by id."""

    def __init__(self, settings: ClusterSettings) -> None:
        named = [*settings.pre_warmed_models, *settings.served_models]
        self._models = {
            model: Model(model, settings.models.get(model) or ModelSource(path=model))
            for model in dict.fromkeys(named)
        }

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def get(self, model: ModelId) -> Model | None:
        return self._models.get(model)

    def __getitem__(self, model: ModelId) -> Model:
        return self._models[model]


def _resolve(model: ModelId, source: ModelSource) -> str:
    """A folder, or a Hugging Face id as it is.

    Raises:
        ModelError: it is neither.
    """
    if model == DEMO_MODEL and source.path == DEMO_MODEL:
        return str(demo_model.folder())
    path = Path(source.path).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"model {model}: {path} has no config.json, so it is no model folder")
        return str(path)
    if path.exists() or source.path.startswith(("/", "~", ".")) or "/" not in source.path:
        raise ModelError(
            f"model {model}: {source.path} is no folder, no Hugging Face id (owner/name) and "
            "no alias under `models` in cluster.yaml"
        )
    return source.path
