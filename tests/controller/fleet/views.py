"""Workers and what they keep, as routing sees them, made of values."""

from collections.abc import Collection, Mapping, Sequence

from controller.fleet.worker_view import WorkerView
from shared.ids import ModelId, WorkerId
from shared.messages.events import Tier


class Views:
    """A fleet of given views; they may be equal in name."""

    def __init__(self, views: Sequence[WorkerView], gone: Sequence[WorkerView] = ()) -> None:
        self._views = list(views)
        self._gone = list(gone)
        self.on_trial: frozenset[WorkerId] = frozenset()

    @property
    def workers(self) -> Sequence[WorkerView]:
        return self._views

    def workers_with(self, model: ModelId) -> Sequence[WorkerView]:
        return [view for view in self._views if model in view.models]

    def warm_workers_with(self, model: ModelId) -> Sequence[WorkerView]:
        return [one for one in self.workers_with(model) if one.models[model].state == "warm"]

    def recently_gone(self, now: float) -> Sequence[WorkerView]:
        return self._gone

    def worker(self, worker: WorkerId) -> WorkerView | None:
        return next((view for view in self._views if view.id == worker), None)


class Kept:
    """The links that each worker keeps."""

    def __init__(self, links: Mapping[str, Mapping[str, Tier]] | None = None) -> None:
        self._links = dict(links or {})

    def links(self, worker: WorkerId) -> Mapping[str, Tier]:
        return self._links.get(worker, {})

    def workers_caching(self, link: str) -> Collection[WorkerId]:
        return [WorkerId(worker) for worker, links in self._links.items() if link in links]
