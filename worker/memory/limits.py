"""Memory limits of a worker and its memory pressure: pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.messages.worker_report import MemoryPressure
from shared.settings.worker import ResourceLimitsSettings

MB = 1_000_000
_RESERVE_SHARE = 0.05
_MAX_RESERVE_BYTES = 2_000 * MB
_SOFT_SHARE = 0.9
_SHARE_FOR_COPIES = 0.5
_RELIEVED_SHARE = 0.95
"""Pressure ends below this share of the limit that caused it: hysteresis, so that the pressure does
not flicker."""


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """A measurement of memory.

    Attributes:
        own_bytes: footprint of the agent and its engines, on a Mac with Metal's buffers.
        available_bytes: what the machine could allocate on top of that.
        total_bytes: memory of the machine.
        device_bytes: the working set that the accelerator recommends; `total_bytes` without one.
    """

    own_bytes: int
    available_bytes: int
    total_bytes: int
    device_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Above `soft_bytes`, idle models are unloaded and requests of low priority are rejected; above
    `hard_bytes`, all new requests are rejected and sequences are preempted."""

    soft_bytes: int
    hard_bytes: int


def limits_of(settings: ResourceLimitsSettings, reading: MemoryReading) -> MemoryLimits:
    """Compute the limits. The hard limit is the minimum of the configured limit, the device's
    recommendation, and used plus available memory less a reserve for the rest of the machine. The
    soft limit is as configured, by default nine tenths of the hard one, and never above it."""
    reserve = min(_MAX_RESERVE_BYTES, int(_RESERVE_SHARE * reading.total_bytes))
    hard = min(reading.device_bytes, reading.own_bytes + reading.available_bytes - reserve)
    if settings.critical_memory_mb is not None:
        hard = min(hard, settings.critical_memory_mb * MB)
    hard = max(0, hard)
    soft = int(_SOFT_SHARE * hard)
    if settings.max_memory_mb is not None:
        soft = min(settings.max_memory_mb * MB, hard)
    return MemoryLimits(soft, hard)


def pressure_of(limits: MemoryLimits, own_bytes: int, before: MemoryPressure) -> MemoryPressure:
    """Return the pressure at a footprint of `own_bytes`; `before` is the previous pressure."""

    def above(limit: int, was_above: bool) -> bool:
        return own_bytes > (limit * _RELIEVED_SHARE if was_above else limit)

    if above(limits.hard_bytes, before == "hard"):
        return "hard"
    return "soft" if above(limits.soft_bytes, before != "none") else "none"


def kv_allowances(
    limits: MemoryLimits, own_bytes: int, held_bytes: Sequence[int], spare_bytes: int
) -> list[int]:
    """Return how many bytes the KV caches of each engine may take, so that the worker stays midway
    between its two limits: running sequences can grow, and none is preempted yet.

    Args:
        own_bytes: footprint of the whole worker.
        held_bytes: what the KV caches of each engine take now.
        spare_bytes: the part of `own_bytes` that MLX caches in the engines and can release.
    """
    held = sum(held_bytes)
    others = own_bytes - held - spare_bytes
    allowed = max(0, (limits.soft_bytes + limits.hard_bytes) // 2 - others)
    if allowed >= held:
        share = (allowed - held) // max(1, len(held_bytes))
        return [each + share for each in held_bytes]
    return [int(each * allowed / held) for each in held_bytes]


def affordable_copies(free_bytes: int, copy_bytes: int, max_copies: int) -> int:
    """Return the number of engines that load a model: the copies beyond the first may take half of
    the memory that the first one leaves free, so that KV caches have the other half.

    Args:
        free_bytes: free memory before any copy is loaded.
        max_copies: maximum number of copies.
    """
    spare = _SHARE_FOR_COPIES * max(0, free_bytes - copy_bytes)
    return max(1, min(max_copies, 1 + int(spare // max(1, copy_bytes))))
