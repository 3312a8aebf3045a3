"""How many engines a worker runs."""

from dataclasses import dataclass

import psutil

from shared.errors import ModelError
from shared.ids import ModelId
from shared.settings import ClusterSettings
from shared.settings.base import MOST_ENGINES
from shared.settings.models import ModelSource
from shared.settings.worker import EnginesSettings
from worker.host.machine import accelerator, available_cores
from worker.memory.limits import MemoryReading, affordable_copies, limits_of
from worker.models.files import inspect
from worker.models.sources import local_folder, with_base

_ENGINE_BYTES = 150_000_000
"""Of a process that has loaded nothing: measured with MLX for CPUs on Linux."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """
    Attributes:
        count: engines of this worker.
        why: for people.
    """

    count: int
    why: str


def engine_plan(settings: ClusterSettings) -> EnginePlan:
    """What is right on this machine."""
    engines = settings.worker.engines
    found = accelerator()
    size_matters = engines.count == "auto" and not found
    return decide(
        engines,
        accelerator=found,
        cores=available_cores(),
        weight_bytes=_weight_bytes(settings) if size_matters else None,
        later_bytes=_later_bytes(settings) if size_matters else 0,
        soft_bytes=_soft_bytes(settings),
    )


def decide(
    settings: EnginesSettings,
    *,
    accelerator: str,
    cores: int,
    weight_bytes: int | None,
    later_bytes: int = 0,
    soft_bytes: int,
) -> EnginePlan:
    """As set, or what is best on such a machine. A GPU computes all rows of a batch at once; of a
    CPU much of a step keeps one core busy only, so that two engines do more than one with both
    cores. Each engine has its own copy of the models, as far as memory allows.

    Args:
        accelerator: metal, cuda or none (empty).
        cores: that this worker may use.
        weight_bytes: of all models that are to be warm; None where a size is not known.
        later_bytes: of the largest one that may come beside them, for which there shall be room.
        soft_bytes: what this worker may take without memory pressure.
    """
    if settings.count != "auto":
        return EnginePlan(settings.count, "as worker.engines.count says")
    if accelerator:
        return EnginePlan(1, "a GPU computes all requests in one batch")
    if weight_bytes is None:
        return EnginePlan(1, "a model to be warm is not on this machine yet: its size is unknown")
    copy_bytes = weight_bytes + _ENGINE_BYTES
    most = min(cores, MOST_ENGINES)
    count = affordable_copies(soft_bytes, copy_bytes, most)
    count = max(1, min(count, (soft_bytes - later_bytes) // copy_bytes))
    if count == cores:
        return EnginePlan(count, "one for each core, as there is no GPU")
    return EnginePlan(
        count,
        f"no GPU, {cores} cores, but more copies of the models ({copy_bytes / 1e9:.2f} GB each) "
        f"would leave too little of {soft_bytes / 1e9:.2f} GB for KV caches and other models",
    )


def _soft_bytes(settings: ClusterSettings) -> int:
    """Of a worker that has the machine for itself: so the plan is the same at each start, and what
    is kept on disk for each engine is found again."""
    total = psutil.virtual_memory().total
    reading = MemoryReading(0, total, total, total)
    return limits_of(settings.worker.resource_limits, reading).soft_bytes


def _weight_bytes(settings: ClusterSettings) -> int | None:
    """Of all models that are to be warm; None where one is not on this machine."""
    sizes = [_size_of(model, settings) for model in settings.pre_warmed_models]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _later_bytes(settings: ClusterSettings) -> int:
    """Of the largest model that is loaded for requests only, as far as it is on this machine."""
    if not settings.worker.model_loading.on_demand:
        return 0
    later = set(settings.served_models) - set(settings.pre_warmed_models)
    return max((_size_of(model, settings) or 0 for model in later), default=0)


def _size_of(model: ModelId, settings: ClusterSettings) -> int | None:
    """Bytes of its weights; None where it is not on this machine."""
    source = settings.models.get(model) or ModelSource(path=model)
    try:
        source = with_base(model, source)
        folder = local_folder(model, source)
        if folder is None:
            from worker.models.hub_cache import complete_snapshot  # slow to import

            code = source.trust_remote_code
            folder = complete_snapshot(source.path, source.revision, code=code)
        if folder is None:
            return None
        return inspect(folder, trust_remote_code=source.trust_remote_code).weight_bytes
    except ModelError:
        return 0  # told when it is to be loaded
