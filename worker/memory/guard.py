"""Watches what this worker holds, and has its engines give back when that is too much.

What is given up, in this order: memory that the engines keep for later and idle models, new
requests of low priority, all new requests, and then sequences that run: the lowest priority
first, the youngest of it first. Those wait and go on where they were. Nothing is cut short.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence

import psutil

from shared.messages.events import MemoryPressure, MemoryStatus, refuses
from shared.messages.request import Priority
from shared.settings.worker import ResourceLimitsSettings
from worker.engine_process.process import EngineProcess
from worker.host.footprint import footprint_bytes
from worker.link.orders import LimitMemory
from worker.memory.limits import MemoryLimits, MemoryReading, kv_allowances, limits_of, pressure_of

logger = logging.getLogger(__name__)

_PATIENCE_S = 1.0
"""Soft pressure that lasts no longer is that of a long prompt: no model goes for it."""
_EVICTION_INTERVAL_S = 2.0
_GIVE_BACK_INTERVAL_S = 2.0
_MIN_REPORTED_CHANGE = 0.02


class MemoryGuard:
    """Args:
    engines: all of this worker; the list may still grow.

    Attributes:
        pressure: as of the last `check`.
        limits: as of the last `check`.
    """

    def __init__(self, settings: ResourceLimitsSettings, engines: Sequence[EngineProcess]) -> None:
        self._settings = settings
        self._engines = engines
        self.pressure: MemoryPressure = "none"
        self._evictions = self._refusals = 0
        self._evicted_at = self._gave_back_at = 0.0
        self._pressed_since = time.monotonic()
        self._told: dict[int | None, int] = {}  # by process: what its KV caches may take
        self._reading = self._read()
        self.limits: MemoryLimits = limits_of(settings, self._reading)

    def configure(self, settings: ResourceLimitsSettings) -> None:
        """Hold other limits from the next `check` on."""
        self._settings = settings

    def check(self) -> None:
        """Measure."""
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
                "memory pressure: %s; this worker holds %.2f GB, its limits are %.2f and %.2f GB",
                self.pressure, self._reading.own_bytes / 1e9, self.limits.soft_bytes / 1e9,
                self.limits.hard_bytes / 1e9,
            )  # fmt: skip

    @property
    def most_bytes(self) -> int:
        """What this worker may take in all without pressure."""
        return self.limits.soft_bytes if self._settings.enabled else self._reading.total_bytes

    @property
    def free_bytes(self) -> int:
        """What may be taken besides; negative when there is too much already."""
        return self.most_bytes - self._reading.own_bytes + self._spare_bytes + self._lent_bytes

    def refusal(self, level: Priority) -> str | None:
        """Why a new request is not taken now; None where it is."""
        if not refuses(self.pressure, level):
            return None
        self.refused()
        which = "everything new" if self.pressure == "hard" else "low priority"
        return (
            f"memory is short, {which} is refused: {self._reading.own_bytes / 1e9:.2f} GB are "
            f"held, the limits are {self.limits.soft_bytes / 1e9:.2f} GB (soft) and "
            f"{self.limits.hard_bytes / 1e9:.2f} GB (hard)"
        )

    def refused(self) -> None:
        """Something was not taken because memory is short."""
        self._refusals += 1

    def evicted(self) -> None:
        """A model went because memory is short."""
        self._evictions += 1

    def relieve(self, evict: Callable[[], bool]) -> None:
        """Do what the pressure asks for; call it after each `check`.

        Args:
            evict: has the next idle model go; False when there is none.
        """
        if not self._settings.enabled:
            return
        now = time.monotonic()
        gives_back = self.pressure != "none" and now - self._gave_back_at > _GIVE_BACK_INTERVAL_S
        if gives_back:
            self._gave_back_at = now
        self._limit_engines(gives_back)
        lasts = self.pressure == "hard" or now - self._pressed_since > _PATIENCE_S
        # What one gave back is seen a moment later: not all go at once.
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

    def _limit_engines(self, gives_back: bool) -> None:
        running = [engine for engine in self._engines if engine.state == "running"]
        held = [
            engine.measured.kv_bytes + engine.measured.kv_memory.memory_bytes for engine in running
        ]
        own = self._reading.own_bytes
        allowances = kv_allowances(self.limits, own, held, self._spare_bytes)
        for engine, allowed in zip(running, allowances, strict=True):
            told = self._told.get(engine.pid)
            changed = told is None or abs(allowed - told) > _MIN_REPORTED_CHANGE * max(
                told, allowed
            )
            if gives_back or changed:
                self._told[engine.pid] = allowed
                engine.send(LimitMemory(allowed, requeue=gives_back))

    @property
    def _spare_bytes(self) -> int:
        return sum(engine.measured.cache_memory_bytes for engine in self._engines)

    @property
    def _lent_bytes(self) -> int:
        """What is kept of texts: it goes as soon as somebody needs the room."""
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
    """Where a footprint omits the device's buffers (CUDA), MLX's own count is the larger."""
    footprint = footprint_bytes([engine.pid]) if engine.pid else 0
    measured = engine.measured
    return max(footprint, measured.active_memory_bytes + measured.cache_memory_bytes)
