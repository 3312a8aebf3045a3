"""Progress of workers on stderr: bars on a terminal, else lines."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from shared.cli.views.models import model_activity
from shared.messages.health import ClusterHealth
from shared.messages.worker_report import WorkerReport
from shared.terminal_text import printable


class ProgressDisplay:
    """Shows the activity of each worker on stderr.

    On a terminal a worker has a progress bar. Elsewhere a line is printed when its activity
    changes, unless `quiet`.
    """

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
        self._printed: dict[str, str] = {}

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

    def update(self, worker: str, activity: str, fraction: float) -> None:
        """
        Args:
            fraction: how much of the activity is done, 0 to 1.
        """
        text = printable(f"{worker}: {activity}")
        if worker not in self._tasks:
            self._tasks[worker] = self._bars.add_task(text, total=1.0)
        self._bars.update(self._tasks[worker], description=text, completed=fraction)
        if self._lines and self._printed.get(worker) != text:
            self._printed[worker] = text
            self._bars.console.print(text, markup=False, soft_wrap=True)


class StartupDisplay(ProgressDisplay):
    """Shows how far the workers of a cluster have started."""

    def show(self, health: ClusterHealth) -> None:
        for worker in health.workers:
            self.update(worker.id, *startup_progress(worker))


def startup_progress(worker: WorkerReport) -> tuple[str, float]:
    """Return what a worker does until it is ready, and the fraction done, 0 to 1."""
    loading = next((model for model in worker.models if model.state == "loading"), None)
    if loading is not None:
        return f"{model_activity(loading)} {loading.id}", loading.progress or 0.0
    return worker.state, 1.0 if worker.state == "ready" else 0.0
