"""Settings of the workers: engines, warming, batching, queue, limits."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from shared.ids import NAME_PATTERN
from shared.settings.base import (
    IGNORED,
    MOST_ENGINES,
    Count,
    Milliseconds,
    Model,
    PositiveMilliseconds,
    PriorityName,
    SettingsSection,
)
from shared.settings.kv_cache import KvCacheSettings, SessionsSettings
from shared.settings.nats import address

_MAX_CHUNK_TOKENS = 2048


class EnginesSettings(SettingsSection):
    """`count: auto` is one with a GPU; without one, one for each core as far as memory allows.
    `threads: auto` (or null) has the engines that have work share the cores. `max_restarts` counts
    within 10 minutes. An engine is killed and started again after `hang_timeout_ms` without a sign
    of life, and after `step_timeout_ms` in one step."""

    count: Annotated[int, Field(ge=1, le=MOST_ENGINES)] | Literal["auto"] = "auto"
    threads: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] | None = "auto"
    startup_timeout_ms: PositiveMilliseconds = 30_000
    shutdown_timeout_ms: PositiveMilliseconds = 5000
    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    restart_delay_ms: Milliseconds = 1000
    hang_timeout_ms: Annotated[int, Field(ge=2000)] = 5000
    step_timeout_ms: Annotated[int, Field(ge=2000)] = 60_000

    @property
    def fixed_threads(self) -> int | None:
        """Of each engine; None where they share the cores."""
        return None if self.threads == "auto" else self.threads


class PreWarmModel(SettingsSection):
    model: Model
    priority: PriorityName = "medium"


class PredictiveWarmingSettings(SettingsSection):
    """Warms the models that past use says are asked for next, as far as they fit without
    evicting another; `min_requests_per_h` is what makes one worth it."""

    enabled: bool = False
    interval_s: Count = 60
    min_requests_per_h: float = Field(1.0, gt=0, le=1_000_000)


class PreWarmingSettings(SettingsSection):
    """`timeout_per_model_ms` counts time without progress."""

    enabled: bool = True
    models: list[PreWarmModel] | None = None
    timeout_per_model_ms: PositiveMilliseconds = 30_000
    parallel: bool = False
    register_when: Literal["warming", "complete"] = "warming"
    predictive: PredictiveWarmingSettings = PredictiveWarmingSettings()


class ModelLoadingSettings(SettingsSection):
    """What a worker may do by itself for a request or an operator: load a model that is not
    loaded (`on_demand`), unload idle ones for it (`eviction`), fetch its files (`downloads`)."""

    on_demand: bool = True
    eviction: bool = True
    downloads: bool = True


class PeerFilesSettings(SettingsSection):
    """Files of models that another worker has come from there instead of from the hub. `host` and
    `port`: where others fetch what this worker has (0: any free port); `max_mb_per_s`: all of
    them together."""

    enabled: bool = True
    host: Annotated[str, AfterValidator(address)] = "0.0.0.0"
    port: int = Field(0, ge=0, le=65535)
    max_mb_per_s: Annotated[float, Field(gt=0)] | None = 100


class ContinuousBatchingSettings(SettingsSection):
    """`kv_memory_mb` is what the KV caches of an engine may take together, by default most of
    what the models leave of the device's memory. Prefill goes in chunks of a size that is
    measured, of `prefill_chunk_tokens` at most, and the last one of each prompt."""

    enabled: bool = True
    min_batch_size: Annotated[int, Field(ge=1, le=1024)] = 1
    max_batch_size: Annotated[int, Field(ge=1, le=1024)] = 32
    prefill_chunk_tokens: Annotated[int, Field(ge=16, le=65_536)] | Literal["auto"] = "auto"
    max_decode_stall_ms: PositiveMilliseconds = 500
    kv_memory_mb: Annotated[int, Field(ge=1)] | None = None

    @property
    def most_rows(self) -> int:
        """Sequences of a model that an engine decodes at once."""
        return self.max_batch_size if self.enabled else 1

    @property
    def max_chunk_tokens(self) -> int:
        chunk = self.prefill_chunk_tokens
        return _MAX_CHUNK_TOKENS if chunk == "auto" else chunk

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_batch_size > self.max_batch_size:
            raise ValueError("min_batch_size must not exceed max_batch_size")
        return self


class AdaptiveBatchingSettings(SettingsSection):
    """While others wait, rows are added as long as one more adds a hundredth to the tokens a second
    and the gap between two tokens of a stream stays in bounds. `balanced`: up to
    `target_step_latency_ms`, or `slowdown_limit` times the gap of a row alone where that is
    longer; `latency`: up to the target; `throughput`: without bounds, and as long as a
    hundredth more rows add a thousandth. Judged every `adjustment_interval` steps. What is too
    long by `tolerance_ms` (`latency`) costs rows."""

    enabled: bool = True
    objective: Literal["balanced", "latency", "throughput"] = "balanced"
    slowdown_limit: float = Field(4.0, ge=1, le=1000)
    target_step_latency_ms: float = Field(100, gt=0, le=60_000)
    tolerance_ms: float = Field(20, ge=0, le=60_000)
    adjustment_interval: Count = 5
    ema_alpha: float = Field(0.3, gt=0, le=1, json_schema_extra=IGNORED)
    max_adjustment_step: Count = Field(2, json_schema_extra=IGNORED)
    degradation_multiplier: float = Field(2.0, ge=1, le=100, json_schema_extra=IGNORED)


class RequestQueueSettings(SettingsSection):
    """`max_wait_ms` bounds the queue by time, too: a request that would wait longer, at the rate
    at which the worker serves, is refused; one that did is given back."""

    max_depth: Count = 100
    max_wait_ms: PositiveMilliseconds | None = None
    reject_when_full: bool = True
    priority_levels: Annotated[int, Field(ge=1, le=3)] = 3
    promote_after_ms: PositiveMilliseconds = 10_000


class ResourceLimitsSettings(SettingsSection):
    """`max_memory_mb` is soft (evict, refuse low priority), `critical_memory_mb` hard."""

    enabled: bool = True
    max_memory_mb: Count | None = None
    critical_memory_mb: Count | None = None
    check_interval_ms: Annotated[int, Field(ge=10, le=60_000)] = 250

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        soft, hard = self.max_memory_mb, self.critical_memory_mb
        if soft is not None and hard is not None and soft > hard:
            raise ValueError("max_memory_mb must not exceed critical_memory_mb")
        return self


class WorkerSettings(SettingsSection):
    """`id` is made from the host's name and kept on disk when not given; `models` limits what
    this worker serves (by default all that `skills` and `models` name)."""

    id: str | None = Field(None, pattern=NAME_PATTERN)
    models: Annotated[list[Model], Field(min_length=1)] | None = None
    labels: dict[str, str] = {}
    drain_timeout_ms: PositiveMilliseconds = 30_000
    engines: EnginesSettings = EnginesSettings()
    pre_warming: PreWarmingSettings = PreWarmingSettings()
    model_loading: ModelLoadingSettings = ModelLoadingSettings()
    peer_files: PeerFilesSettings = PeerFilesSettings()
    continuous_batching: ContinuousBatchingSettings = ContinuousBatchingSettings()
    adaptive_batching: AdaptiveBatchingSettings = AdaptiveBatchingSettings()
    request_queue: RequestQueueSettings = RequestQueueSettings()
    resource_limits: ResourceLimitsSettings = ResourceLimitsSettings()
    kv_cache: KvCacheSettings = KvCacheSettings()
    sessions: SessionsSettings = SessionsSettings()

    @model_validator(mode="after")
    def _a_stall_is_no_hang(self) -> Self:
        if 2 * self.continuous_batching.max_decode_stall_ms > self.engines.step_timeout_ms:
            raise ValueError(
                "continuous_batching.max_decode_stall_ms must not exceed half of "
                "engines.step_timeout_ms, or engines are killed while they prefill"
            )
        return self
