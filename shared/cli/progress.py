"""What people see while models are loaded."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from shared.cli.views.figures import printable
from shared.cli.views.models import doing
from shared.messages.health import ClusterHealth
from shared.messages.worker_report import WorkerReport


class LoadDisplay:
    """A bar for each worker, or whoever works, on a terminal; else, unless quiet, a line for each
    change of what it does. On stderr."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True)
        self._lines = not console.is_terminal and not quiet
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
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

    def update(self, worker: str, what: str, share: float) -> None:
        """Args:
        share: of what it does, 0 to 1.
        """
        text = printable(f"{worker}: {what}")
        if worker not in self._tasks:
            self._tasks[worker] = self._bars.add_task(text, total=1.0)
        self._bars.update(self._tasks[worker], description=text, completed=share)
        if self._lines and self._said.get(worker) != text:
            self._said[worker] = text
            self._bars.console.print(text, markup=False, soft_wrap=True)


class WarmUpDisplay(LoadDisplay):
    """Shows how far all workers of a cluster are."""

    def show(self, health: ClusterHealth) -> None:
        for worker in health.workers:
            self.update(worker.id, *warming(worker))


def warming(worker: WorkerReport) -> tuple[str, float]:
    """What a worker does until it is ready, and how far that is, 0 to 1."""
    loading = next((model for model in worker.models if model.state == "loading"), None)
    if loading is not None:
        return f"{doing(loading)} {loading.id}", loading.progress or 0.0
    return worker.state, 1.0 if worker.state == "ready" else 0.0
