"""The engine processes of a worker, and the folders in which they cache."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from shared.folders import cache_folder
from shared.ids import WorkerId
from shared.settings import ClusterSettings
from shared.settings.worker import WorkerSettings
from worker.engine_process.exit import UnexpectedEngineExit
from worker.engine_process.process import EngineProcess
from worker.host.machine import available_cores
from worker.link.facts import Fact


def engine_processes(
    settings: ClusterSettings,
    worker_id: WorkerId,
    count: int,
    *,
    on_fact: Callable[[EngineProcess, Fact], Awaitable[None]],
    on_lost: Callable[[EngineProcess, str], Awaitable[None]],
    explain: Callable[[EngineProcess, UnexpectedEngineExit], bool],
) -> list[EngineProcess]:
    """Return `count` engine processes, which are not started yet."""
    engines = settings.worker.engines
    return [
        EngineProcess(
            index,
            engines,
            _arguments(settings.worker, worker_id, index, count),
            engines.fixed_threads or max(1, available_cores() // count),
            retry_after_failure_s=settings.controller.circuit_breaker.recovery_timeout_ms / 1000,
            on_fact=on_fact,
            on_lost=on_lost,
            explain=explain,
        )
        for index in range(count)
    ]


def sessions_folder(settings: WorkerSettings, worker_id: WorkerId) -> Path | None:
    """Return where sessions are stored; None if nothing may be stored on disk."""
    folder = _kv_folder(settings, worker_id)
    return folder / "sessions" / worker_id if folder is not None else None


def _arguments(settings: WorkerSettings, worker_id: WorkerId, index: int, count: int) -> list[str]:
    arguments = ["--settings", settings.model_dump_json(), "--engines", str(count)]
    if (folder := _kv_folder(settings, worker_id)) is not None:
        arguments += ["--kv-folder", str(folder / f"engine-{index}")]
    return arguments


def _kv_folder(settings: WorkerSettings, worker_id: WorkerId) -> Path | None:
    """Return the folder of cached blocks; None if nothing may be stored on disk."""
    if not (settings.kv_cache.enabled and settings.kv_cache.disk_mb):
        return None
    configured = settings.kv_cache.disk_path
    folder = Path(configured).expanduser() if configured else cache_folder() / "kv" / worker_id
    return folder.absolute()
