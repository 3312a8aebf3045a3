"""The tree of settings with its defaults. Frozen; unknown keys are refused.

Units stand in the names. A section that is a capability has `enabled`.
"""

import ipaddress
import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    SecretStr,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.ids import NAME_PATTERN, ModelId, SkillName
from shared.messages.edge import TemplateValues

Milliseconds = Annotated[int, Field(ge=0, le=86_400_000)]
PositiveMilliseconds = Annotated[int, Field(ge=1, le=86_400_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
PriorityName = Literal["high", "medium", "low"]
DEMO_MODEL = ModelId("demo")
MOST_ENGINES = 64
_MAX_CHUNK_TOKENS = 2048
_IGNORED: dict[str, JsonValue] = {"ignored": True}
"""Of a setting that is read no more: who still has it is told (`ignored_settings`)."""
Model = Annotated[ModelId, Field(min_length=1, max_length=256)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Security(Section):
    """`strict_inbox`: replies must lie under `_INBOX.<client>.`, as the server's permissions
    check; set where the server authenticates. There a client may have no more than
    `max_requests_per_client` that have not ended, at each controller. `client`: in whose name
    commands ask."""

    strict_inbox: bool = False
    max_requests_per_client: Count = 1000
    client: Annotated[str, Field(pattern=NAME_PATTERN)] = "local"


class Tls(Section):
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


def _server_url(url: str) -> str:
    """Raises ValueError when no NATS client could connect to `url`; does not show it whole,
    because it may hold a password."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    if parts.scheme not in ("nats", "tls", "ws", "wss"):
        raise ValueError("a server is nats://HOST:PORT, tls://, ws:// or wss://")
    if not parts.hostname:
        raise ValueError("a server needs a host: nats://HOST:PORT")
    try:
        parts.port  # noqa: B018  (checked when it is read)
    except ValueError:
        raise ValueError("a server's port is a number up to 65535: nats://HOST:PORT") from None
    return url


ServerUrl = Annotated[str, AfterValidator(_server_url)]


class Nats(Section):
    servers: Annotated[list[ServerUrl], Field(min_length=1)] = ["nats://127.0.0.1:4222"]
    token: SecretStr | None = None
    user_credentials: str | None = None
    nkey_seed_file: str | None = None
    tls: Tls | None = None


def _address(text: str) -> str:
    ipaddress.ip_address(text)
    return text


class Discovery(Section):
    """Controllers tell the local network of their cluster; a worker that was told of none looks for
    one. `interfaces`: on which of this machine's addresses; by default on all."""

    enabled: bool = True
    interfaces: list[Annotated[str, AfterValidator(_address)]] = []


_AGE = re.compile(r"([1-9]\d{0,8})([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def _age(value: Any) -> Any:
    """Seconds, of a text as `12h` or `30d` too."""
    if not isinstance(value, str):
        return value
    if (found := _AGE.fullmatch(value.strip())) is None:
        raise ValueError("an age is a number of seconds, or a text as 90s, 30m, 12h or 30d")
    return int(found[1]) * _SECONDS[found[2]]


Age = Annotated[int, BeforeValidator(_age), Field(ge=1, le=315_360_000)]


class StoredResponses(Section):
    """Responses that clients of OpenAI's Responses API have stored, in JetStream. What is older
    than `max_age`, in seconds or as `12h` or `30d`, is forgotten; what would be more than
    `max_bytes`, of all clients together, is not stored."""

    store: bool = True
    max_bytes: Annotated[int, Field(ge=100_000, le=1_000_000_000_000)] = 1_000_000_000
    max_age: Age = 7 * 86_400


class GatewayTls(Section):
    """PEM files of the certificate that HTTP clients see."""

    cert_file: str = Field(min_length=1)
    key_file: str = Field(min_length=1)


class Gateway(Section):
    """The HTTP edge. Beyond this machine it asks for keys: those of `keys_file`, or else
    of `gateway keys add`; unless it is to `allow_anonymous`.

    `model_aliases`: the name that a program insists on → a model or a skill. `cors_origins`: web
    pages that may call it (`["*"]`: all); none by default. `unknown_fields`: those of requests are
    ignored, and named in the response header `x-ignored-fields`, or refused. `idle_timeout_ms`: so
    long may an answer stand still, without a token and without progress before the first.
    """

    id: str | None = Field(None, pattern=NAME_PATTERN)
    enabled: bool = False
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    keys_file: Annotated[str, Field(min_length=1)] | None = None
    allow_anonymous: bool = False
    tls: GatewayTls | None = None
    cors_origins: list[Annotated[str, Field(min_length=1)]] = []
    model_aliases: dict[Model, Annotated[str, Field(min_length=1, max_length=256)]] = {}
    unknown_fields: Literal["ignore", "refuse"] = "ignore"
    responses: StoredResponses = StoredResponses()
    max_body_bytes: Annotated[int, Field(ge=1, le=64_000_000)] = 2_000_000
    max_header_bytes: Annotated[int, Field(ge=1024, le=1_000_000)] = 32_768
    max_connections: Count = 1024
    header_timeout_ms: PositiveMilliseconds = 10_000
    body_timeout_ms: PositiveMilliseconds = 30_000
    send_timeout_ms: PositiveMilliseconds = 30_000
    idle_timeout_ms: PositiveMilliseconds = 600_000
    keep_alive_ms: PositiveMilliseconds = 10_000
    drain_timeout_ms: PositiveMilliseconds = 30_000


ToolFormatName = Literal[
    "hermes", "qwen3_coder", "mistral", "mistral_args", "llama3", "gemma4", "function_gemma",
    "kimi_k2", "kimi_k3", "glm", "minimax_m2", "deepseek_v3", "deepseek_v31", "deepseek_dsml",
    "seed_oss", "longcat", "longcat_json", "nemotron", "granite", "cohere", "lfm2", "minicpm5",
    "harmony", "muse", "none",
]  # fmt: skip
ReasoningFormatName = Literal[
    "think", "longcat", "think_start_end", "mistral", "gemma4", "seed", "kimi_k3", "granite",
    "cohere", "none",
]  # fmt: skip


class ModelSource(Section):
    """Where a model comes from, a folder or a Hugging Face id, and how long it stays: it is
    unloaded when it was not used for `ttl_s`, and evicted for others the sooner, the lower its
    `priority`; a `pinned` one never. `trust_remote_code` runs Python files that come with it. How
    it writes tool calls and reasoning is found from its files where `tool_format` and
    `reasoning_format` do not say it; `chat_template_kwargs` go to its chat template, unless a
    request says otherwise. `adapter`: a folder or a Hugging Face id of what was fine-tuned on top
    of it (LoRA); a `path` that is such a folder stands for its base model with it.
    `max_context_tokens` lowers the model's own context, and stands for one that its files do not
    name."""

    path: str = Field(min_length=1)
    adapter: Annotated[str, Field(min_length=1)] | None = None
    priority: PriorityName = "medium"
    ttl_s: int | None = Field(None, ge=1)
    pinned: bool = False
    revision: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    max_context_tokens: Count | None = None
    trust_remote_code: bool = False
    tool_format: ToolFormatName | None = None
    reasoning_format: ReasoningFormatName | None = None
    chat_template_kwargs: TemplateValues = {}


class Routing(Section):
    policy: Literal["prefix-aware", "least-busy", "round-robin", "power-of-two"] = "prefix-aware"
    sticky_sessions: bool = True
    session_ttl_s: Count = 3600


class DispatchSettings(Section):
    min_hold_ms: float = Field(0.75, ge=0, le=1000)
    max_hold_ms: float = Field(3, ge=0, le=1000)
    max_batch: Count = 16
    ack_timeout_ms: PositiveMilliseconds = 1000

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_hold_ms > self.max_hold_ms:
            raise ValueError("min_hold_ms must not exceed max_hold_ms")
        return self


class Retry(Section):
    enabled: bool = True
    max_attempts: int = Field(3, ge=1, le=100)
    initial_delay_ms: Milliseconds = 100
    max_delay_ms: Milliseconds = 5000
    multiplier: float = Field(2.0, ge=1, le=100)
    jitter: float = Field(0.25, ge=0, le=1)


class WaitingRoom(Section):
    """Where requests wait in a controller for which no worker has room."""

    enabled: bool = True
    max_depth: Count = 100
    max_wait_ms: PositiveMilliseconds = 5000


class Metrics(Section):
    """Where the controller's figures are had over HTTP, in Prometheus' text format."""

    enabled: bool = False
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: int = Field(9464, ge=0, le=65535)


class CircuitBreaker(Section):
    enabled: bool = True
    failure_threshold: Count = 5
    recovery_timeout_ms: PositiveMilliseconds = 10_000
    half_open_max_calls: Count = 1
    half_open_success_threshold: Count = 2
    failure_window_ms: PositiveMilliseconds = 60_000


class Failover(Section):
    """Where it is not `enabled`, a leader that is gone without a word is followed once its lease
    has expired."""

    enabled: bool = True
    heartbeat_interval_ms: Annotated[int, Field(ge=50, le=60_000)] = 1000
    missed_heartbeats: Annotated[int, Field(ge=1, le=100)] = 3
    probe_interval_ms: Annotated[int, Field(ge=10, le=60_000)] = 200
    migration_limit: Annotated[int, Field(ge=0, le=100)] = 3


class LeaderLease(Section):
    """The same for all controllers of a cluster. JetStream counts whole seconds."""

    ttl_s: Annotated[int, Field(ge=1, le=3600)] = 10


class RolloutGates(Section):
    """What a new version may do to the workers that run it, beside what was before; who does more
    is rolled back. `error_increase`: of the share of requests that failed or were refused;
    `throughput`: the share of tokens/s that must be left. None judges nothing."""

    error_increase: float | None = Field(0.1, ge=0, le=1)
    least_requests: Count = 5
    throughput: float | None = Field(0.95, ge=0, le=1)
    batch_changes_per_min: float | None = Field(10, ge=0)
    breaker_open_s: float | None = Field(300, ge=0)
    failover_ms: float | None = Field(1000, ge=0)
    soft_memory: bool = True


class Rollout(Section):
    """How a version of this file goes to the workers: first to `canary` of them, then to the
    shares of `steps_percent`, each step watched for `bake_s`. A worker has `patience_s` to be
    ready with it."""

    enabled: bool = True
    canary: Annotated[int, Field(ge=0, le=1000)] = 1
    steps_percent: Annotated[
        list[Annotated[int, Field(ge=1, le=100)]], Field(min_length=1, max_length=20)
    ] = [25, 50, 100]
    baseline_s: float = Field(30, ge=0, le=86_400)
    bake_s: float = Field(60, ge=0, le=86_400)
    patience_s: float = Field(600, ge=1, le=86_400)
    gates: RolloutGates = RolloutGates()

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if sorted(set(self.steps_percent)) != self.steps_percent or self.steps_percent[-1] != 100:
            raise ValueError("steps_percent must rise, and end with 100")
        return self


class Controller(Section):
    id: str | None = Field(None, pattern=NAME_PATTERN)
    routing: Routing = Routing()
    dispatch: DispatchSettings = DispatchSettings()
    retry: Retry = Retry()
    waiting_room: WaitingRoom = WaitingRoom()
    circuit_breaker: CircuitBreaker = CircuitBreaker()
    metrics: Metrics = Metrics()
    failover: Failover = Failover()
    lease: LeaderLease = LeaderLease()
    rollout: Rollout = Rollout()


class Engines(Section):
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


class PreWarmModel(Section):
    model: Model
    priority: PriorityName = "medium"


class PredictiveWarming(Section):
    """Warms the models that past use says are asked for next, as far as they fit without
    evicting another; `min_requests_per_h` is what makes one worth it."""

    enabled: bool = False
    interval_s: Count = 60
    min_requests_per_h: float = Field(1.0, gt=0, le=1_000_000)


class PreWarming(Section):
    """`timeout_per_model_ms` counts time without progress."""

    enabled: bool = True
    models: list[PreWarmModel] | None = None
    timeout_per_model_ms: PositiveMilliseconds = 30_000
    parallel: bool = False
    register_when: Literal["warming", "complete"] = "warming"
    predictive: PredictiveWarming = PredictiveWarming()


class ModelLoading(Section):
    """What a worker may do by itself for a request or an operator: load a model that is not
    loaded (`on_demand`), unload idle ones for it (`eviction`), fetch its files (`downloads`)."""

    on_demand: bool = True
    eviction: bool = True
    downloads: bool = True


class PeerFiles(Section):
    """Files of models that another worker has come from there instead of from the hub. `host` and
    `port`: where others fetch what this worker has (0: any free port); `max_mb_per_s`: all of
    them together."""

    enabled: bool = True
    host: Annotated[str, AfterValidator(_address)] = "0.0.0.0"
    port: int = Field(0, ge=0, le=65535)
    max_mb_per_s: Annotated[float, Field(gt=0)] | None = 100


class ContinuousBatching(Section):
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


class AdaptiveBatching(Section):
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
    ema_alpha: float = Field(0.3, gt=0, le=1, json_schema_extra=_IGNORED)
    max_adjustment_step: Count = Field(2, json_schema_extra=_IGNORED)
    degradation_multiplier: float = Field(2.0, ge=1, le=100, json_schema_extra=_IGNORED)


class RequestQueue(Section):
    """`max_wait_ms` bounds the queue by time, too: a request that would wait longer, at the rate
    at which the worker serves, is refused; one that did is given back."""

    max_depth: Count = 100
    max_wait_ms: PositiveMilliseconds | None = None
    reject_when_full: bool = True
    priority_levels: Annotated[int, Field(ge=1, le=3)] = 3
    promote_after_ms: PositiveMilliseconds = 10_000


class ResourceLimits(Section):
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


def _pattern(text: str) -> str:
    try:
        compiled = re.compile(text)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from None
    if compiled.fullmatch(""):
        raise ValueError("must not match an empty line")
    return text


class PromptRule(Section):
    """What to do with lines of a prompt that match `pattern` (a regular expression, for the whole
    line): `remove` them, or `move` them to the end of their message."""

    pattern: Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_pattern)]
    action: Literal["remove", "move"] = "remove"
    roles: Annotated[
        list[Literal["system", "developer", "user", "assistant"]], Field(min_length=1)
    ] = ["system"]


class KvCache(Section):
    """`memory_mb` defaults to a quarter of the memory ceiling. `disk_mb` 0 keeps nothing on disk;
    `disk_writes_mb_per_day` spares the disk, which wears out by writing: the default lets one of
    1 TB live for years."""

    enabled: bool = True
    block_tokens: Annotated[int, Field(ge=16, le=4096)] = 256
    memory_mb: Annotated[int, Field(ge=0)] | None = None
    disk_mb: Annotated[int, Field(ge=0)] = 20_480
    disk_writes_mb_per_day: Annotated[int, Field(ge=0)] | None = 256_000
    disk_path: str | None = None
    bits: Literal["native"] | Literal[8] = "native"
    prompt_rules: Annotated[list[PromptRule], Field(max_length=32)] = []


class Sessions(Section):
    """Of each client the longest unused go when there are more, or when what is kept of their
    texts alone takes more than `max_mb_per_client`; all that were not used for `ttl_s` go."""

    ttl_s: Annotated[int, Field(ge=1)] = 604_800
    max_per_client: Annotated[int, Field(ge=1, le=100_000)] = 1000
    max_mb_per_client: Annotated[int, Field(ge=1)] | None = None

    @property
    def most_bytes_per_client(self) -> int:
        return 2**62 if self.max_mb_per_client is None else self.max_mb_per_client * 1_000_000


class Worker(Section):
    """`id` is made from the host's name and kept on disk when not given; `models` limits what
    this worker serves (by default all that `skills` and `models` name)."""

    id: str | None = Field(None, pattern=NAME_PATTERN)
    models: Annotated[list[Model], Field(min_length=1)] | None = None
    labels: dict[str, str] = {}
    drain_timeout_ms: PositiveMilliseconds = 30_000
    engines: Engines = Engines()
    pre_warming: PreWarming = PreWarming()
    model_loading: ModelLoading = ModelLoading()
    peer_files: PeerFiles = PeerFiles()
    continuous_batching: ContinuousBatching = ContinuousBatching()
    adaptive_batching: AdaptiveBatching = AdaptiveBatching()
    request_queue: RequestQueue = RequestQueue()
    resource_limits: ResourceLimits = ResourceLimits()
    kv_cache: KvCache = KvCache()
    sessions: Sessions = Sessions()

    @model_validator(mode="after")
    def _a_stall_is_no_hang(self) -> Self:
        if 2 * self.continuous_batching.max_decode_stall_ms > self.engines.step_timeout_ms:
            raise ValueError(
                "continuous_batching.max_decode_stall_ms must not exceed half of "
                "engines.step_timeout_ms, or engines are killed while they prefill"
            )
        return self


class Logging(Section):
    """`file`: for JSON lines, instead of stderr; begun anew when somebody renames it."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "text", "json"] = "auto"
    file: Annotated[str, Field(min_length=1)] | None = None


class Match(Section):
    """Which workers an override is for: those for which all holds that is said.

    `workers`: names, where `*` stands for anything; `chip`: a part of its name; `labels`: all of
    them."""

    workers: Annotated[list[str], Field(min_length=1)] | None = None
    labels: dict[str, str] = {}
    chip: Annotated[str, Field(min_length=1)] | None = None
    min_memory_gb: float | None = Field(None, ge=0)
    max_memory_gb: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("says nothing: what is for all workers stands in `worker`")
        return self


class Override(Section):
    """Settings of the workers that `match`; later ones win. `worker` and `logging` as at the top
    level, with only what differs."""

    match: Match
    worker: dict[str, Any] = {}
    logging: dict[str, Any] = {}


class ClusterSettings(BaseSettings):
    """All of cluster.yaml. Build it with `load_settings`, which names the source of errors."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix="CLUSTER__",
        env_nested_delimiter="__",
        env_parse_none_str="null",
        nested_model_default_partial_update=True,
    )

    security: Security = Security()
    nats: Nats = Nats()
    discovery: Discovery = Discovery()
    gateway: Gateway = Gateway()
    skills: dict[Annotated[SkillName, Field(pattern=NAME_PATTERN)],
                 Annotated[list[Model], Field(min_length=1)]] = {
        SkillName("chat"): [DEMO_MODEL]
    }  # fmt: skip
    models: dict[Model, ModelSource] = {}
    controller: Controller = Controller()
    worker: Worker = Worker()
    logging: Logging = Logging()
    overrides: Annotated[list[Override], Field(max_length=256)] = []

    @property
    def served_models(self) -> list[ModelId]:
        """What a worker serves: by default every model that skills or aliases name."""
        if self.worker.models is not None:
            return self.worker.models
        named = [model for models in self.skills.values() for model in models]
        return list(dict.fromkeys([*named, *self.models]))

    @property
    def pre_warmed_models(self) -> list[ModelId]:
        """The models to warm, high priority first; by default the first one of each skill."""
        settings = self.worker.pre_warming
        if not settings.enabled:
            return []
        if settings.models is None:
            preferred = dict.fromkeys(models[0] for models in self.skills.values())
            return list(dict.fromkeys(self.worker.models or preferred))
        rank = {"high": 0, "medium": 1, "low": 2}
        by_priority = sorted(settings.models, key=lambda entry: rank[entry.priority])
        return list(dict.fromkeys(entry.model for entry in by_priority))
