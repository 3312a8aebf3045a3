"""Settings of the controllers: routing, retries, leader election, roll-outs."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shared.ids import NAME_PATTERN
from shared.settings.base import Count, Milliseconds, PositiveMilliseconds, SettingsSection
from shared.settings.metrics import MetricsSettings


class RoutingSettings(SettingsSection):
    policy: Literal["prefix-aware", "least-busy", "round-robin", "power-of-two"] = "prefix-aware"
    sticky_sessions: bool = True
    session_ttl_s: Count = 3600


class DispatchSettings(SettingsSection):
    min_hold_ms: float = Field(0.75, ge=0, le=1000)
    max_hold_ms: float = Field(3, ge=0, le=1000)
    max_batch: Count = 16
    ack_timeout_ms: PositiveMilliseconds = 1000

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_hold_ms > self.max_hold_ms:
            raise ValueError("min_hold_ms must not exceed max_hold_ms")
        return self


class RetrySettings(SettingsSection):
    enabled: bool = True
    max_attempts: int = Field(3, ge=1, le=100)
    initial_delay_ms: Milliseconds = 100
    max_delay_ms: Milliseconds = 5000
    multiplier: float = Field(2.0, ge=1, le=100)
    jitter: float = Field(0.25, ge=0, le=1)


class WaitingRoomSettings(SettingsSection):
    """The wait queue of a controller, for requests for which no worker has capacity."""

    enabled: bool = True
    max_depth: Count = 100
    max_wait_ms: PositiveMilliseconds = 5000


class CircuitBreakerSettings(SettingsSection):
    enabled: bool = True
    failure_threshold: Count = 5
    recovery_timeout_ms: PositiveMilliseconds = 10_000
    half_open_max_calls: Count = 1
    half_open_success_threshold: Count = 2
    failure_window_ms: PositiveMilliseconds = 60_000


class FailoverSettings(SettingsSection):
    """A worker or controller that sends no heartbeat for `heartbeat_interval_ms` x
    `missed_heartbeats` counts as gone. With `enabled`, a standby replaces a leader that does not
    answer probes; without it, only when the leader's lease has expired. A request migrates at most
    `migration_limit` times in a row without a new token."""

    enabled: bool = True
    heartbeat_interval_ms: Annotated[int, Field(ge=50, le=60_000)] = 1000
    missed_heartbeats: Annotated[int, Field(ge=1, le=100)] = 3
    probe_interval_ms: Annotated[int, Field(ge=10, le=60_000)] = 200
    migration_limit: Annotated[int, Field(ge=0, le=100)] = 3


class LeaderLeaseSettings(SettingsSection):
    """Must be equal in all controllers of a cluster. JetStream counts whole seconds."""

    ttl_s: Annotated[int, Field(ge=1, le=3600)] = 10


class RolloutGatesSettings(SettingsSection):
    """Limits for the workers that run a new version, compared with before; above a limit the
    version is rolled back. `error_increase`: how much the share of failed and rejected requests may
    grow; `throughput`: the share of the previous tokens/s that must remain. None disables a
    gate."""

    error_increase: float | None = Field(0.1, ge=0, le=1)
    least_requests: Count = 5
    throughput: float | None = Field(0.95, ge=0, le=1)
    batch_changes_per_min: float | None = Field(10, ge=0)
    breaker_open_s: float | None = Field(300, ge=0)
    failover_ms: float | None = Field(1000, ge=0)
    soft_memory: bool = True


class RolloutSettings(SettingsSection):
    """How a version of this file is rolled out: first to `canary` workers, then to the shares of
    `steps_percent`; each step is watched for `bake_s`. A worker must be ready with the version
    within `patience_s`."""

    enabled: bool = True
    canary: Annotated[int, Field(ge=0, le=1000)] = 1
    steps_percent: Annotated[
        list[Annotated[int, Field(ge=1, le=100)]], Field(min_length=1, max_length=20)
    ] = [25, 50, 100]
    baseline_s: float = Field(30, ge=0, le=86_400)
    bake_s: float = Field(60, ge=0, le=86_400)
    patience_s: float = Field(600, ge=1, le=86_400)
    gates: RolloutGatesSettings = RolloutGatesSettings()

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if sorted(set(self.steps_percent)) != self.steps_percent or self.steps_percent[-1] != 100:
            raise ValueError("steps_percent must rise, and end with 100")
        return self


class ControllerSettings(SettingsSection):
    id: str | None = Field(None, pattern=NAME_PATTERN)
    routing: RoutingSettings = RoutingSettings()
    dispatch: DispatchSettings = DispatchSettings()
    retry: RetrySettings = RetrySettings()
    waiting_room: WaitingRoomSettings = WaitingRoomSettings()
    circuit_breaker: CircuitBreakerSettings = CircuitBreakerSettings()
    metrics: MetricsSettings = MetricsSettings()
    failover: FailoverSettings = FailoverSettings()
    lease: LeaderLeaseSettings = LeaderLeaseSettings()
    rollout: RolloutSettings = RolloutSettings()
