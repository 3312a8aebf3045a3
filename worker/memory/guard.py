"""Watches the memory footprint of this worker and relieves memory pressure.

In this order: MLX's cached buffers are released and idle models unloaded, new requests of low
priority are rejected, all new requests are rejected, and running sequences are preempted: those of
the lowest priority first, the youngest among them first. Preempted sequences wait and continue
where they stopped. No answer is truncated.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence

import psutil

from shared.messages.base import Priority
from shared.messages.worker_report import MemoryPressure, MemoryStatus, rejects
from shared.settings.worker import ResourceLimitsSettings
from worker.engine_process.process import EngineProcess
from worker.host.process_usage import footprint_bytes
from worker.link.orders import LimitKVCaches
from worker.memory.limits import MemoryLimits, MemoryReading, kv_allowances, limits_of, pressure_of

logger = logging.getLogger(__name__)

_PATIENCE_S = 1.0
"""Soft pressure that does not last longer comes from a long prompt: no model is unloaded for it."""
_EVICTION_INTERVAL_S = 2.0
_RELEASE_INTERVAL_S = 2.0
_MIN_REPORTED_CHANGE = 0.02


class MemoryGuard:
    """
    Args:
        engines: all engines of this worker; the list may still grow.

    Attributes:
        pressure: as of the last `check`.
        limits: as of the last `check`.
    """

    def __init__(self, settings: ResourceLimitsSettings, engines: Sequence[EngineProcess]) -> None:
        self._settings = settings
        self._engines = engines
        self.pressure: MemoryPressure = "none"
        self._evictions = self._refusals = 0
        self._evicted_at = self._released_at = 0.0
        self._pressed_since = time.monotonic()
        self._sent_limits: dict[int | None, int] = {}  # of KV caches, by process
        self._reading = self._read()
        self.limits: MemoryLimits = limits_of(settings, self._reading)

    def configure(self, settings: ResourceLimitsSettings) -> None:
        """Apply other limits from the next `check` on."""
        self._settings = settings

    def check(self) -> None:
        """Measure memory, and update limits and pressure."""
        self._reading = self._read()
        self.limits = limits_of(self._settings, self._reading)
        if not self._settings.enabled:
            return
        before = self.pressure
        self.pressure = pressure_of(self.limits, self._reading.own_bytes, before)
        if self.pressure == "none":
            self._pressed_since = time.monotonic()
        if self.pressure != before:
            logger.warning(
                "memory pressure: %s; this worker uses %.2f GB, its limits are %.2f GB (soft) and "
                "%.2f GB (hard)",
                self.pressure, self._reading.own_bytes / 1e9, self.limits.soft_bytes / 1e9,
                self.limits.hard_bytes / 1e9,
            )  # fmt: skip

    @property
    def max_bytes(self) -> int:
        """What this worker may use in total without pressure."""
        return self.limits.soft_bytes if self._settings.enabled else self._reading.total_bytes

    @property
    def free_bytes(self) -> int:
        """What may be allocated in addition; negative if the worker uses too much already."""
        return self.max_bytes - self._reading.own_bytes + self._spare_bytes + self._cached_kv_bytes

    def refusal(self, level: Priority) -> str | None:
        """Return why a new request is rejected now, or None; counts the rejection."""
        if not rejects(self.pressure, level):
            return None
        self.refused()
        which = "all new requests" if self.pressure == "hard" else "requests of low priority"
        return (
            f"memory is short, {which} are rejected: {self._reading.own_bytes / 1e9:.2f} GB are "
            f"in use, the limits are {self.limits.soft_bytes / 1e9:.2f} GB (soft) and "
            f"{self.limits.hard_bytes / 1e9:.2f} GB (hard)"
        )

    def refused(self) -> None:
        """Count a request or model that was rejected because memory is short."""
        self._refusals += 1

    def evicted(self) -> None:
        """Count a model that was unloaded because memory is short."""
        self._evictions += 1

    def relieve(self, evict: Callable[[], bool]) -> None:
        """Relieve the pressure; call it after each `check`.

        Args:
            evict: unloads the next idle model; returns False if there is none.
        """
        if not self._settings.enabled:
            return
        now = time.monotonic()
        release = self.pressure != "none" and now - self._released_at > _RELEASE_INTERVAL_S
        if release:
            self._released_at = now
        self._limit_engines(release)
        lasts = self.pressure == "hard" or now - self._pressed_since > _PATIENCE_S
        # The memory of an unloaded model is measured a moment later: do not unload all at once.
        waited = now - self._evicted_at > _EVICTION_INTERVAL_S
        if self.pressure != "none" and lasts and waited and evict():
            self._evicted_at = now
            self.evicted()

    def status(self) -> MemoryStatus:
        return MemoryStatus(
            own_bytes=self._reading.own_bytes,
            available_bytes=self._reading.available_bytes,
            soft_bytes=self.limits.soft_bytes,
            hard_bytes=self.limits.hard_bytes,
            pressure=self.pressure,
            evictions=self._evictions,
            refusals=self._refusals,
        )

    def _limit_engines(self, release: bool) -> None:
        running = [engine for engine in self._engines if engine.state == "running"]
        held = [
            engine.measured.kv_bytes + engine.measured.kv_memory.memory_bytes for engine in running
        ]
        own = self._reading.own_bytes
        allowances = kv_allowances(self.limits, own, held, self._spare_bytes)
        for engine, allowed in zip(running, allowances, strict=True):
            sent = self._sent_limits.get(engine.pid)
            changed = sent is None or abs(allowed - sent) > _MIN_REPORTED_CHANGE * max(
                sent, allowed
            )
            if release or changed:
                self._sent_limits[engine.pid] = allowed
                engine.send(LimitKVCaches(allowed, release_cached_memory=release))

    @property
    def _spare_bytes(self) -> int:
        """MLX's cached buffers, which engines can release."""
        return sum(engine.measured.cache_memory_bytes for engine in self._engines)

    @property
    def _cached_kv_bytes(self) -> int:
        """Cached blocks in memory: they are evicted as soon as the memory is needed."""
        return sum(engine.measured.kv_memory.memory_bytes for engine in self._engines)

    def _read(self) -> MemoryReading:
        memory = psutil.virtual_memory()
        devices = [engine.started.memory_limit_bytes for engine in self._engines if engine.started]
        return MemoryReading(
            own_bytes=footprint_bytes([os.getpid()]) + sum(map(engine_bytes, self._engines)),
            available_bytes=memory.available,
            total_bytes=memory.total,
            device_bytes=min(devices, default=memory.total),
        )


def engine_bytes(engine: EngineProcess) -> int:
    """Return the memory that an engine takes: the larger of its footprint and MLX's own count,
    since a footprint may omit the device's buffers (CUDA)."""
    footprint = footprint_bytes([engine.pid]) if engine.pid else 0
    measured = engine.measured
    return max(footprint, measured.active_memory_bytes + measured.cache_memory_bytes)
