"""Settings of the workers: engines, pre-warming, batching, queue, limits."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from shared.ids import NAME_PATTERN
from shared.settings.base import (
    IGNORED,
    MAX_ENGINES,
    Count,
    Milliseconds,
    Model,
    PositiveMilliseconds,
    PriorityName,
    SettingsSection,
)
from shared.settings.kv_cache import KvCacheSettings, SessionRetentionSettings
from shared.settings.metrics import WorkerMetricsSettings
from shared.settings.nats import address

_MAX_CHUNK_TOKENS = 2048


class EnginesSettings(SettingsSection):
    """`count: auto` is one engine with a GPU; without one, an engine per core as far as memory
    allows. With `threads: auto` (or null) the busy engines share the cores. `max_restarts` counts
    within 10 minutes. An engine is killed and restarted after `hang_timeout_ms` without a
    heartbeat, and after `step_timeout_ms` in one step. A prompt that is not rendered and tokenised
    within `preparation_timeout_ms` is rejected; if that cannot be stopped, the engine is killed
    after twice the time."""

    count: Annotated[int, Field(ge=1, le=MAX_ENGINES)] | Literal["auto"] = "auto"
    threads: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] | None = "auto"
    startup_timeout_ms: PositiveMilliseconds = 30_000
    shutdown_timeout_ms: PositiveMilliseconds = 5000
    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    restart_delay_ms: Milliseconds = 1000
    hang_timeout_ms: Annotated[int, Field(ge=2000)] = 5000
    step_timeout_ms: Annotated[int, Field(ge=2000)] = 60_000
    preparation_timeout_ms: Annotated[int, Field(ge=1000)] = 10_000

    @property
    def fixed_threads(self) -> int | None:
        """Threads of each engine; None if the engines share the cores."""
        return None if self.threads == "auto" else self.threads


class PreWarmedModelSettings(SettingsSection):
    model: Model
    priority: PriorityName = "medium"


class PredictiveWarmingSettings(SettingsSection):
    """Loads the models that are predicted from past use, if they fit without an eviction, and at
    least `min_requests_per_h` are expected."""

    enabled: bool = False
    interval_s: Count = 60
    min_requests_per_h: float = Field(1.0, gt=0, le=1_000_000)


class PreWarmingSettings(SettingsSection):
    """`timeout_per_model_ms` counts the time without progress."""

    enabled: bool = True
    models: list[PreWarmedModelSettings] | None = None
    timeout_per_model_ms: PositiveMilliseconds = 30_000
    parallel: bool = False
    register_when: Literal["warming", "complete"] = "warming"
    predictive: PredictiveWarmingSettings = PredictiveWarmingSettings()


class ModelLoadingSettings(SettingsSection):
    """What a worker may do for a request or an operator: load a model that is not loaded
    (`on_demand`), unload idle models for it (`eviction`), download its files (`downloads`)."""

    on_demand: bool = True
    eviction: bool = True
    downloads: bool = True


class PeerFilesSettings(SettingsSection):
    """Downloads model files from other workers that have them, instead of from the hub. `host` and
    `port`: the address at which this worker serves its files (port 0: any free port).
    `max_mb_per_s` limits all transfers to other workers together."""

    enabled: bool = True
    host: Annotated[str, AfterValidator(address)] = "0.0.0.0"
    port: int = Field(0, ge=0, le=65535)
    max_mb_per_s: Annotated[float, Field(gt=0)] | None = 100


class ContinuousBatchingSettings(SettingsSection):
    """`kv_memory_mb` limits the KV caches of an engine together; the default is most of the
    device's memory that the models leave free. Prefill runs in chunks of a size that is measured,
    at most `prefill_chunk_tokens`; the last chunk of a prompt is the rest of it. Between two steps,
    prefill takes at most `max_decode_stall_ms`."""

    enabled: bool = True
    min_batch_size: Annotated[int, Field(ge=1, le=1024)] = 1
    max_batch_size: Annotated[int, Field(ge=1, le=1024)] = 32
    prefill_chunk_tokens: Annotated[int, Field(ge=16, le=65_536)] | Literal["auto"] = "auto"
    max_decode_stall_ms: PositiveMilliseconds = 500
    kv_memory_mb: Annotated[int, Field(ge=1)] | None = None

    @property
    def max_rows(self) -> int:
        """Maximum number of sequences of a model that an engine decodes at once."""
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
    """While requests wait, the worker decodes more rows at once, within the limits of `objective`:

    - `balanced`: one more row must add 1% to the tokens per second. The gap between two tokens of a
      stream is at most `target_step_latency_ms`, or `slowdown_limit` times the gap of a single row
      if that is longer.
    - `latency`: a step takes at most `target_step_latency_ms`. If it exceeds this by more than
      `tolerance_ms`, rows are removed.
    - `throughput`: one more row must add 1% to the tokens per second; above 10 rows, 1% more rows
      must add 0.1%. The gap has no limit.

    Evaluated every `adjustment_interval` steps."""

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
    """`max_wait_ms` limits the queue by time, too: a request that would wait longer, at the current
    rate of the worker, is rejected; one that did wait longer is requeued."""

    max_depth: Count = 100
    max_wait_ms: PositiveMilliseconds | None = None
    reject_when_full: bool = True
    priority_levels: Annotated[int, Field(ge=1, le=3)] = 3
    promote_after_ms: PositiveMilliseconds = 10_000


class ResourceLimitsSettings(SettingsSection):
    """`max_memory_mb` is a soft limit (evict, reject low priority), `critical_memory_mb` a hard
    one."""

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
    """The default `id` is made from the host name and stored on disk. `models` limits the models of
    this worker (by default all in `skills` and `models`)."""

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
    sessions: SessionRetentionSettings = SessionRetentionSettings()
    metrics: WorkerMetricsSettings = WorkerMetricsSettings()

    @model_validator(mode="after")
    def _stalls_are_no_hangs(self) -> Self:
        if 2 * self.continuous_batching.max_decode_stall_ms > self.engines.step_timeout_ms:
            raise ValueError(
                "continuous_batching.max_decode_stall_ms must not exceed half of "
                "engines.step_timeout_ms, or engines are killed while they prefill"
            )
        return self
