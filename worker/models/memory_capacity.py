"""Memory for models' weights: whether a model fits, and which idle models are evicted for it."""

import asyncio
from collections.abc import Callable, Sequence, Sized

from shared.errors import ModelError, Unavailable
from shared.messages.worker_report import MEMORY_RETRY_AFTER_MS
from worker.memory.guard import MemoryGuard
from worker.memory.limits import affordable_copies
from worker.models.eviction import victims
from worker.models.worker_models import WorkerModel

_MARGIN = 1.02
_UNLOAD_TIMEOUT_S = 10.0
_POLL_INTERVAL_S = 0.1


class ModelMemoryManager:
    """Reserves memory for models, and evicts idle ones for them.

    Args:
        engines: all engines of this worker, each of which loads each model; the list may still
            grow.
        allow_fewer_copies: whether fewer engines may load a model that does not fit in all.
        idle: returns the models that may be evicted, in the order of eviction.
        unload: unloads one of them.
    """

    def __init__(
        self,
        guard: MemoryGuard,
        *,
        engines: Sized,
        allow_fewer_copies: bool,
        eviction: bool,
        idle: Callable[[], Sequence[WorkerModel]],
        unload: Callable[[WorkerModel], None],
    ) -> None:
        self._guard = guard
        self._engines = engines
        self._allow_fewer_copies = allow_fewer_copies
        self.eviction = eviction
        self._idle = idle
        self._unload = unload
        self._reserved: dict[str, int] = {}  # bytes for models that are being loaded

    def check_maximum(self, model: WorkerModel, size_bytes: int) -> None:
        """Check a model's size before its download.

        Raises:
            ModelError: the model would not fit even if it were the only one.
        """
        limit = self._guard.max_bytes
        if self._needed(size_bytes) > limit:
            raise ModelError(
                f"{model.id} needs {_gb(self._needed(size_bytes))}{self._in_engines()}; this "
                f"worker's memory limit is {_gb(limit)}"
            )

    def fits(self, model: WorkerModel) -> bool:
        """Whether a model fits without evicting another."""
        return self._missing(model) <= 0

    def check(self, model: WorkerModel) -> None:
        """Check that a model fits if idle ones are evicted. Passes if its size is unknown.

        Raises:
            Unavailable: the model does not fit; the message has its size and the free memory.
        """
        missing = self._missing(model)
        if missing <= 0 or self._victims(model, missing):
            return
        self._guard.refused()
        raise Unavailable(
            f"{model.id} needs {_gb(self._needed(model.size_bytes))}{self._in_engines()} of memory "
            f"and {_gb(max(0, self._free()))} are free of {_gb(self._guard.max_bytes)}"
            + ("" if self.eviction else " (eviction is off)"),
            code="memory_pressure",
            retry_after_ms=MEMORY_RETRY_AFTER_MS,
        )

    async def reserve(self, model: WorkerModel) -> int:
        """Evict idle models as far as necessary, and reserve the memory until `release`. Returns
        how many engines are to load the model.

        Raises:
            Unavailable: the model does not fit.
        """
        self._guard.check()
        self.check(model)
        missing = self._missing(model)
        copies = self._least_copies
        if self._allow_fewer_copies:
            one = self._needed(model.size_bytes)
            copies = affordable_copies(self._free(model), one, len(self._engines))
        self._reserved[model.id] = self._needed(model.size_bytes, copies)
        if missing > 0:
            for victim in self._victims(model, missing):
                self._unload(victim)
                self._guard.evicted()
            await self._wait_until_free(model)
        return copies

    def release(self, model: WorkerModel) -> None:
        """Release the reservation of a model that was loaded, or will not be."""
        self._reserved.pop(model.id, None)

    async def _wait_until_free(self, model: WorkerModel) -> None:
        """Wait until the unloaded models' memory is measured as free, which takes a moment."""
        try:
            async with asyncio.timeout(_UNLOAD_TIMEOUT_S):
                while self._missing(model) > 0:
                    await asyncio.sleep(_POLL_INTERVAL_S)
                    self._guard.check()
        except TimeoutError:
            return  # the allocator still holds some of it, and will use it for the model

    def _victims(self, model: WorkerModel, missing_bytes: int) -> list[WorkerModel]:
        return victims(self._idle(), missing_bytes, model.source.priority) if self.eviction else []

    def _missing(self, model: WorkerModel) -> int:
        return self._needed(model.size_bytes) - self._free(model)

    def _free(self, model: WorkerModel | None = None) -> int:
        """Return the free bytes without the reservations of other models than this one."""
        reserved = sum(
            size for other, size in self._reserved.items() if not model or other != model.id
        )
        return self._guard.free_bytes - reserved

    @property
    def _least_copies(self) -> int:
        return 1 if self._allow_fewer_copies else len(self._engines)

    def _needed(self, size_bytes: int, copies: int | None = None) -> int:
        """Return the bytes for this number of copies; by default, for the least number."""
        return int(_MARGIN * size_bytes * (self._least_copies if copies is None else copies))

    def _in_engines(self) -> str:
        copies = self._least_copies
        return f" in {copies} engines" if copies > 1 else ""


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB"
