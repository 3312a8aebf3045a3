"""The engine plan: how many engines a worker runs."""

from dataclasses import dataclass

import psutil

from shared.errors import ModelError
from shared.ids import ModelId
from shared.settings import ClusterSettings
from shared.settings.base import MAX_ENGINES
from shared.settings.models import ModelSettings
from shared.settings.worker import EnginesSettings
from worker.host.machine import accelerator, available_cores
from worker.memory.limits import MemoryReading, affordable_copies, limits_of
from worker.models.files import inspect
from worker.models.sources import local_folder, with_base

_ENGINE_BYTES = 150_000_000
"""Memory of an engine without models, measured with MLX for CPUs on Linux."""


@dataclass(frozen=True, slots=True)
class EngineCount:
    """
    Attributes:
        count: number of engines.
        why: the reason, for people.
    """

    count: int
    why: str


def engine_count(settings: ClusterSettings) -> EngineCount:
    """Return the plan for this machine."""
    engines = settings.worker.engines
    gpu = accelerator()
    size_matters = engines.count == "auto" and not gpu
    return decide(
        engines,
        accelerator=gpu,
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
) -> EngineCount:
    """Return the configured number of engines, or choose one. A GPU computes all rows of a batch at
    once. On a CPU much of a step keeps only one core busy, so that two engines do more than one
    with both cores. Each engine has its own copy of the models, so memory limits their number.

    Args:
        accelerator: metal, cuda, or empty for none.
        cores: number of cores that this worker may use.
        weight_bytes: size of all pre-warmed models; None if a size is unknown.
        later_bytes: size of the largest other model that may be loaded, for which memory is left.
        soft_bytes: memory that this worker may use without pressure.
    """
    if settings.count != "auto":
        return EngineCount(settings.count, "set by worker.engines.count")
    if accelerator:
        return EngineCount(1, "a GPU computes all requests in one batch")
    if weight_bytes is None:
        return EngineCount(1, "a pre-warmed model is not on this machine yet: its size is unknown")
    copy_bytes = weight_bytes + _ENGINE_BYTES
    count = affordable_copies(soft_bytes, copy_bytes, min(cores, MAX_ENGINES))
    count = max(1, min(count, (soft_bytes - later_bytes) // copy_bytes))
    if count == cores:
        return EngineCount(count, "one per core, as there is no GPU")
    return EngineCount(
        count,
        f"no GPU, {cores} cores, but more copies of the models ({copy_bytes / 1e9:.2f} GB each) "
        f"would leave too little of {soft_bytes / 1e9:.2f} GB for KV caches and other models",
    )


def _soft_bytes(settings: ClusterSettings) -> int:
    """Return the soft limit of a worker that has the machine to itself: so the plan is the same at
    each start, and the blocks that each engine cached on disk are found again."""
    total = psutil.virtual_memory().total
    reading = MemoryReading(0, total, total, total)
    return limits_of(settings.worker.resource_limits, reading).soft_bytes


def _weight_bytes(settings: ClusterSettings) -> int | None:
    """Return the size of all pre-warmed models; None if one is not on this machine."""
    sizes = [_size_of(model, settings) for model in settings.pre_warmed_models]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _later_bytes(settings: ClusterSettings) -> int:
    """Return the size of the largest model that is loaded on demand only, among those on this
    machine."""
    if not settings.worker.model_loading.on_demand:
        return 0
    later = set(settings.served_models) - set(settings.pre_warmed_models)
    return max((_size_of(model, settings) or 0 for model in later), default=0)


def _size_of(model: ModelId, settings: ClusterSettings) -> int | None:
    """Return the size of a model's weights; None if the model is not on this machine."""
    source = settings.models.get(model) or ModelSettings(path=model)
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
        return 0  # the error is reported when the model is loaded
