"""The order in which a restarted engine loads its models again."""

from collections.abc import Collection, Sequence

from shared.ids import ModelId
from worker.models.catalogue import Model


class DeferredLoads:
    """Models that may have ended an engine: it loads them again only once it holds all its others,
    so that the streams of these go on until then."""

    def __init__(self) -> None:
        self._models: dict[int, set[ModelId]] = {}  # by engine

    def begin(
        self, engine: int, here: Sequence[Model], suspects: Collection[ModelId]
    ) -> list[Model]:
        """An engine began anew; returns which of the models that are to be there it loads first."""
        held_back = self._models[engine] = {model.id for model in here if model.id in suspects}
        return [model for model in here if model.id not in held_back]

    def release(self, engine: int, here: Sequence[Model]) -> list[Model]:
        """Those that it loads now, at last."""
        held_back = self._models.get(engine, set())
        if not all(model.id in held_back or engine in model.engines for model in here):
            return []
        self._models.pop(engine, None)
        return [model for model in here if model.id in held_back]

    def lost(self, engine: int) -> None:
        """It ended."""
        self._models.pop(engine, None)
