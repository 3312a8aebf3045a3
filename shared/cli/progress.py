"""What people see while workers warm up."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from shared.messages.events import WorkerReport
from shared.messages.health import ClusterHealth


class WarmUpDisplay:
    """A bar for each worker on a terminal; else a line for each change. On stderr."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True)
        self._lines = not console.is_terminal and not quiet
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def show(self, health: ClusterHealth) -> None:
        for worker in health.workers:
            what, share = _progress(worker)
            text = f"{worker.id}: {what}"
            if worker.id not in self._tasks:
                self._tasks[worker.id] = self._bars.add_task(text, total=1.0)
            self._bars.update(self._tasks[worker.id], description=text, completed=share)
            if self._lines and self._said.get(worker.id) != text:
                self._said[worker.id] = text
                self._bars.console.print(text)


def _progress(worker: WorkerReport) -> tuple[str, float]:
    loading = next((model for model in worker.models if model.state == "loading"), None)
    if loading is not None:
        return f"loading {loading.id}", loading.progress or 0.0
    return worker.state, 1.0 if worker.state == "ready" else 0.0
