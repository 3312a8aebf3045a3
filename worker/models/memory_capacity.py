"""Room in memory for a model's weights: is there enough, and which idle models go for it."""

import asyncio
from collections.abc import Callable, Sequence, Sized

from shared.errors import ModelError, Unavailable
from shared.messages.worker_report import MEMORY_RETRY_AFTER_MS
from worker.memory.guard import MemoryGuard
from worker.memory.limits import affordable_copies
from worker.models.catalogue import Model
from worker.models.eviction import victims

_MARGIN = 1.02
_UNLOAD_PATIENCE_S = 10.0
_LOOK_AGAIN_S = 0.1


class ModelMemory:
    """Args:
    engines: all of this worker, each of which holds each model; the list may still grow.
    may_be_fewer: whether fewer engines may hold a model that has no room in all of them.
    idle: models that may go, the first one first.
    unload: has the engines forget one of them.
    """

    def __init__(
        self,
        guard: MemoryGuard,
        *,
        engines: Sized,
        may_be_fewer: bool,
        eviction: bool,
        idle: Callable[[], Sequence[Model]],
        unload: Callable[[Model], None],
    ) -> None:
        self._guard = guard
        self._engines = engines
        self._may_be_fewer = may_be_fewer
        self.eviction = eviction
        self._idle = idle
        self._unload = unload
        self._promised: dict[str, int] = {}  # to models on their way

    def check_ever(self, model: Model, size_bytes: int) -> None:
        """Before anything is fetched.

        Raises:
            ModelError: the model would not fit if nothing else were there.
        """
        limit = self._guard.most_bytes
        if self._needed(size_bytes) > limit:
            raise ModelError(
                f"{model.id} needs {_gb(self._needed(size_bytes))}{self._each()}; this worker may "
                f"take {_gb(limit)} in all"
            )

    def fits(self, model: Model) -> bool:
        """Whether a model has room without another having to go."""
        return self._missing(model) <= 0

    def check(self, model: Model) -> None:
        """Whether a model can be loaded now, if idle ones go; also where its size is not known.

        Raises:
            Unavailable: it cannot; says its size and what is free.
        """
        missing = self._missing(model)
        if missing <= 0 or self._victims(model, missing):
            return
        self._guard.refused()
        raise Unavailable(
            f"{model.id} needs {_gb(self._needed(model.size_bytes))}{self._each()} of memory and "
            f"{_gb(max(0, self._free()))} are free of {_gb(self._guard.most_bytes)}"
            + ("" if self.eviction else " (eviction is off)"),
            code="memory_pressure",
            retry_after_ms=MEMORY_RETRY_AFTER_MS,
        )

    async def make_for(self, model: Model) -> int:
        """Have idle models go, as far as needed, and keep the room until `taken`. Returns how many
        engines are to hold the model.

        Raises:
            Unavailable: that does not suffice.
        """
        self._guard.check()
        self.check(model)
        missing = self._missing(model)
        copies = self._least_copies
        if self._may_be_fewer:
            one = self._needed(model.size_bytes)
            copies = affordable_copies(self._free(model), one, len(self._engines))
        self._promised[model.id] = self._needed(model.size_bytes, copies)
        if missing > 0:
            for victim in self._victims(model, missing):
                self._unload(victim)
                self._guard.evicted()
            await self._wait_for_room(model)
        return copies

    def taken(self, model: Model) -> None:
        """The model is loaded, or will not be."""
        self._promised.pop(model.id, None)

    async def _wait_for_room(self, model: Model) -> None:
        """What engines give back is seen a moment later."""
        try:
            async with asyncio.timeout(_UNLOAD_PATIENCE_S):
                while self._missing(model) > 0:
                    await asyncio.sleep(_LOOK_AGAIN_S)
                    self._guard.check()
        except TimeoutError:
            return  # the allocator keeps some of it, which the model will be given

    def _victims(self, model: Model, missing_bytes: int) -> list[Model]:
        return victims(self._idle(), missing_bytes, model.source.priority) if self.eviction else []

    def _missing(self, model: Model) -> int:
        return self._needed(model.size_bytes) - self._free(model)

    def _free(self, newcomer: Model | None = None) -> int:
        promised = sum(
            size for other, size in self._promised.items() if not newcomer or other != newcomer.id
        )
        return self._guard.free_bytes - promised

    @property
    def _least_copies(self) -> int:
        return 1 if self._may_be_fewer else len(self._engines)

    def _needed(self, size_bytes: int, copies: int | None = None) -> int:
        """In so many engines, or in as many as have to hold it."""
        return int(_MARGIN * size_bytes * (self._least_copies if copies is None else copies))

    def _each(self) -> str:
        copies = self._least_copies
        return f" in {copies} engines" if copies > 1 else ""


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB"
