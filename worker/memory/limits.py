"""How much memory this worker may take, and how hard it presses against that. Decides only."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.messages.worker_report import MemoryPressure
from shared.settings.worker import ResourceLimitsSettings

MB = 1_000_000
_RESERVE_SHARE = 0.05
_MOST_RESERVE_BYTES = 2_000 * MB
_SOFT_SHARE = 0.9
_SHARE_FOR_COPIES = 0.5
_RELIEVED_SHARE = 0.95
"""Pressure ends below so much of the limit that brought it, not at once: or it would flicker."""


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """What was measured just now.

    Attributes:
        own_bytes: of the agent and its engines, on a Mac with Metal's buffers.
        available_bytes: what the machine could hand out besides.
        total_bytes: of the machine.
        device_bytes: what the accelerator recommends as its working set; without one `total_bytes`.
    """

    own_bytes: int
    available_bytes: int
    total_bytes: int
    device_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Above `soft_bytes` idle models go and low priority waits outside; above `hard_bytes`
    nothing new comes and sequences give way."""

    soft_bytes: int
    hard_bytes: int


def limits_of(settings: ResourceLimitsSettings, reading: MemoryReading) -> MemoryLimits:
    """The hard limit is the least of what is configured, what the device recommends, and what is
    held and could be had, less a reserve for the rest of the machine. The soft one is as
    configured, or a little below."""
    reserve = min(_MOST_RESERVE_BYTES, int(_RESERVE_SHARE * reading.total_bytes))
    hard = min(reading.device_bytes, reading.own_bytes + reading.available_bytes - reserve)
    if settings.critical_memory_mb is not None:
        hard = min(hard, settings.critical_memory_mb * MB)
    hard = max(0, hard)
    soft = int(_SOFT_SHARE * hard)
    if settings.max_memory_mb is not None:
        soft = min(settings.max_memory_mb * MB, hard)
    return MemoryLimits(soft, hard)


def pressure_of(limits: MemoryLimits, own_bytes: int, before: MemoryPressure) -> MemoryPressure:
    """Where a worker stands that holds so much."""

    def above(limit: int, was_above: bool) -> bool:
        return own_bytes > (limit * _RELIEVED_SHARE if was_above else limit)

    if above(limits.hard_bytes, before == "hard"):
        return "hard"
    return "soft" if above(limits.soft_bytes, before != "none") else "none"


def kv_allowances(
    limits: MemoryLimits, own_bytes: int, held_bytes: Sequence[int], spare_bytes: int
) -> list[int]:
    """What the KV caches of each engine may take, so that all stays between the two limits: so
    far nothing has to give way, and running sequences have room to grow.

    Args:
        own_bytes: of the whole worker.
        held_bytes: by the KV caches of each engine now.
        spare_bytes: of the own ones those that the engines keep for later and can give back.
    """
    held = sum(held_bytes)
    others = own_bytes - held - spare_bytes
    allowed = max(0, (limits.soft_bytes + limits.hard_bytes) // 2 - others)
    if allowed >= held:
        share = (allowed - held) // max(1, len(held_bytes))
        return [each + share for each in held_bytes]
    return [int(each * allowed / held) for each in held_bytes]


def affordable_copies(free_bytes: int, copy_bytes: int, most: int) -> int:
    """Into how many engines something is loaded: the copies beyond the first may take half of what
    that one leaves, so that KV caches have the other half.

    Args:
        free_bytes: without any copy.
    """
    spare = _SHARE_FOR_COPIES * max(0, free_bytes - copy_bytes)
    return max(1, min(most, 1 + int(spare // max(1, copy_bytes))))
