"""One tree out of flags, environment and file; whatever is wrong is said with its source."""

from pathlib import Path
from typing import Any

import pytest

from shared.errors import SettingsError
from shared.settings import ClusterSettings, load_settings

SECRET = "s3cr3t-t0ken"
DEPTH = "CLUSTER__WORKER__REQUEST_QUEUE__MAX_DEPTH"


def failure(file: Path | None = None, flags: dict[str, Any] | None = None) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        load_settings(file, flags)
    assert caught.value.code == "settings"
    return caught.value


def value_at(settings: ClusterSettings, key: str) -> Any:
    value: Any = settings
    for part in key.split("."):
        value = getattr(value, part)
    return value


DEFAULTS = {
    "security.strict_inbox": False,
    "gateway.enabled": False, "gateway.host": "127.0.0.1", "gateway.port": 8000,
    "gateway.keys_file": None,
    "nats.servers": ["nats://127.0.0.1:4222"], "nats.token": None,
    "nats.user_credentials": None, "nats.nkey_seed_file": None, "nats.tls": None,
    "models": {},
    "controller.id": None,
    "controller.routing.policy": "prefix-aware",
    "controller.routing.sticky_sessions": True,
    "controller.routing.session_ttl_s": 3600,
    "controller.dispatch.min_hold_ms": 0.75, "controller.dispatch.max_hold_ms": 3,
    "controller.dispatch.max_batch": 16, "controller.dispatch.ack_timeout_ms": 1000,
    "controller.retry.enabled": True, "controller.retry.max_attempts": 3,
    "controller.retry.initial_delay_ms": 100, "controller.retry.max_delay_ms": 5000,
    "controller.retry.multiplier": 2.0, "controller.retry.jitter": 0.25,
    "controller.circuit_breaker.enabled": True,
    "controller.circuit_breaker.failure_threshold": 5,
    "controller.circuit_breaker.recovery_timeout_ms": 10_000,
    "controller.circuit_breaker.half_open_max_calls": 1,
    "controller.circuit_breaker.half_open_success_threshold": 2,
    "controller.circuit_breaker.failure_window_ms": 60_000,
    "controller.failover.enabled": True,
    "controller.failover.heartbeat_interval_ms": 1000,
    "controller.failover.missed_heartbeats": 3,
    "controller.failover.probe_interval_ms": 200, "controller.failover.migration_limit": 3,
    "controller.lease.ttl_s": 10,
    "worker.id": None, "worker.labels": {},
    "worker.engines.count": "auto", "worker.engines.startup_timeout_ms": 30_000,
    "worker.engines.shutdown_timeout_ms": 5000, "worker.engines.max_restarts": 3,
    "worker.engines.restart_delay_ms": 1000,
    "worker.pre_warming.enabled": True, "worker.pre_warming.models": None,
    "worker.pre_warming.timeout_per_model_ms": 30_000, "worker.pre_warming.parallel": False,
    "worker.pre_warming.register_when": "warming",
    "worker.continuous_batching.enabled": True,
    "worker.continuous_batching.min_batch_size": 1,
    "worker.continuous_batching.max_batch_size": 32,
    "worker.continuous_batching.prefill_chunk_tokens": "auto",
    "worker.continuous_batching.max_decode_stall_ms": 500,
    "worker.adaptive_batching.enabled": True,
    "worker.adaptive_batching.objective": "balanced",
    "worker.adaptive_batching.slowdown_limit": 4.0,
    "worker.adaptive_batching.target_step_latency_ms": 100,
    "worker.adaptive_batching.tolerance_ms": 20, "worker.adaptive_batching.ema_alpha": 0.3,
    "worker.adaptive_batching.adjustment_interval": 5,
    "worker.adaptive_batching.max_adjustment_step": 2,
    "worker.adaptive_batching.degradation_multiplier": 2.0,
    "worker.request_queue.max_depth": 100, "worker.request_queue.reject_when_full": True,
    "worker.request_queue.priority_levels": 3, "worker.request_queue.promote_after_ms": 10_000,
    "worker.resource_limits.enabled": True, "worker.resource_limits.max_memory_mb": None,
    "worker.resource_limits.critical_memory_mb": None,
    "worker.resource_limits.check_interval_ms": 250,
    "worker.kv_cache.enabled": True, "worker.kv_cache.block_tokens": 256,
    "worker.kv_cache.memory_mb": None, "worker.kv_cache.disk_mb": 20_480,
    "worker.kv_cache.disk_path": None, "worker.kv_cache.bits": "native",
}  # fmt: skip


@pytest.mark.parametrize("key", DEFAULTS)
def test_the_defaults_are_those_of_the_design(key: str) -> None:
    assert value_at(load_settings(), key) == DEFAULTS[key]


def test_the_file_overrides_the_defaults(file: Path) -> None:
    file.write_text("worker:\n  request_queue: {max_depth: 7}\nskills: {code: [a, b]}\n")
    settings = load_settings(file)
    assert settings.worker.request_queue.max_depth == 7
    assert settings.worker.request_queue.promote_after_ms == 10_000
    assert settings.skills == {"code": ["a", "b"]}


def test_an_empty_file_leaves_the_defaults(file: Path) -> None:
    file.write_text("# nothing yet\n")
    assert load_settings(file).worker == load_settings().worker


def test_the_environment_overrides_the_file_and_flags_override_both(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("worker: {request_queue: {max_depth: 7, promote_after_ms: 5}}\n")
    monkeypatch.setenv(DEPTH, "200")
    queue = load_settings(file).worker.request_queue
    assert (queue.max_depth, queue.promote_after_ms) == (200, 5)
    queue = load_settings(
        file, {"worker": {"request_queue": {"max_depth": 9}}}
    ).worker.request_queue
    assert (queue.max_depth, queue.promote_after_ms) == (9, 5)


def test_sources_are_merged_key_by_key(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("nats: {user_credentials: a.creds}\n")
    monkeypatch.setenv("CLUSTER__NATS__TOKEN", SECRET)
    nats = load_settings(file, {"nats": {"servers": ["nats://x:1"]}}).nats
    assert (nats.servers, nats.user_credentials) == (["nats://x:1"], "a.creds")
    assert nats.token is not None and nats.token.get_secret_value() == SECRET


@pytest.mark.parametrize(
    ("name", "value", "key", "expected"),
    [
        ("CLUSTER__NATS__SERVERS", '["nats://a:1","nats://b:2"]', "nats.servers",
         ["nats://a:1", "nats://b:2"]),
        ("CLUSTER__SKILLS", '{"code": ["a"]}', "skills", {"code": ["a"]}),
        ("CLUSTER__SKILLS__CODE", '["a"]', "skills", {"code": ["a"]}),
        ("CLUSTER__WORKER__LABELS__ROOM", "2", "worker.labels", {"room": "2"}),
        ("CLUSTER__NATS__TLS__CA_FILE", "ca.pem", "nats.tls.ca_file", "ca.pem"),
        ("CLUSTER__SECURITY__STRICT_INBOX", "true", "security.strict_inbox", True),
        ("CLUSTER__WORKER__CONTINUOUS_BATCHING__PREFILL_CHUNK_TOKENS", "512",
         "worker.continuous_batching.prefill_chunk_tokens", 512),
        ("cluster__worker__engines__count", "2", "worker.engines.count", 2),
    ],
)  # fmt: skip
def test_a_variable_sets_its_key(
    name: str, value: str, key: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert value_at(load_settings(), key) == expected


def test_a_variable_can_set_a_key_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTER__MODELS__CODER__PATH", "/models/coder")
    assert load_settings().models["coder"].path == "/models/coder"  # type: ignore[index]


def test_the_file_is_the_named_one_then_the_variables_then_the_default_one(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, default = tmp_path / "named.yaml", tmp_path / "config" / "cluster.yaml"
    default.parent.mkdir()
    for number, path in ((1, file), (2, named), (3, default)):
        path.write_text(f"worker: {{engines: {{count: {number}}}}}\n")
    assert load_settings().worker.engines.count == 3
    monkeypatch.setenv("CLUSTER_CONFIG", str(named))
    assert load_settings().worker.engines.count == 2
    assert load_settings(file).worker.engines.count == 1


def test_a_file_that_the_variable_names_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTER_CONFIG", "gone.yaml")
    assert failure().message == "gone.yaml: no such file"


BAD_FILES = [
    # text, key, line, what is said
    ("worker: {request_queue: {depth: 5}}", "worker.request_queue.depth", 1,
     "unknown key; allowed here: max_depth, max_wait_ms, reject_when_full, priority_levels, "
     "promote_after_ms"),
    ("wroker: {}", "wroker", 1, "unknown key; allowed here: security, nats, discovery, gateway,"),
    ("nats:\n  tls:\n    ca: x", "nats.tls.ca", 3, "allowed here: ca_file, cert_file, key_file"),
    ("worker:\n  engines:\n    count: many", "worker.engines.count", 3, "valid integer"),
    ("worker:\n  engines:\n    count: many", "worker.engines.count", 3, "not 'many'"),
    ("worker: {engines: {count: []}}", "worker.engines.count", 1, "integer; or Input should be 'a"),
    ("worker: {engines: {count: 0}}", "worker.engines.count", 1, "greater than or equal to 1"),
    ("controller:\n  routing: {policy: best}", "controller.routing.policy", 2,
     "'prefix-aware', 'least-busy', 'round-robin' or 'power-of-two'"),
    ("worker: 5", "worker", 1, "not 5"),
    ("worker:\n  id: my mac", "worker.id", 2, "match pattern"),
    ("skills: {chat: []}", "skills.chat", 1, "at least 1 item"),
    ("skills:\n  chat:\n    - a\n    - 5", "skills.chat.1", 4, "valid string, not 5"),
    ("models: {coder: {revision: x}}", "models.coder.path", 1, "required"),
    ("models: {coder: {path: x, prio: high}}", "models.coder.prio", 1, "priority"),
    ("worker: {pre_warming: {models: [{model: x, prio: high}]}}",
     "worker.pre_warming.models.0.prio", 1, "priority"),
    ("nats: {servers: []}", "nats.servers", 1, "at least 1 item"),
    ("controller: {dispatch: {min_hold_ms: 5}}", "controller.dispatch", 1,
     "min_hold_ms must not exceed max_hold_ms"),
    ("worker: {continuous_batching: {min_batch_size: 64}}", "worker.continuous_batching", 1,
     "min_batch_size must not exceed max_batch_size"),
    ("worker: {resource_limits: {max_memory_mb: 2, critical_memory_mb: 1}}",
     "worker.resource_limits", 1, "max_memory_mb must not exceed critical_memory_mb"),
    ("worker: {continuous_batching: {max_decode_stall_ms: 30001}}", "worker", 1,
     "continuous_batching.max_decode_stall_ms must not exceed half of engines.step_timeout_ms"),
    ("worker: {kv_cache: {bits: 4}}", "worker.kv_cache.bits", 1, "not 4"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "key", "line", "words"), BAD_FILES)
def test_a_bad_value_in_the_file_names_file_line_key_and_what_is_allowed(
    text: str, key: str, line: int, words: str, file: Path
) -> None:
    file.write_text(text)
    error = failure(file)
    assert error.message.startswith(f"{file}, line {line}: {key}")
    assert words in error.message
    assert error.param is not None and error.param.startswith(key)


def test_a_duplicate_key_names_both_lines(file: Path) -> None:
    file.write_text("worker:\n  id: a\n  labels: {}\n  id: b\n")
    error = failure(file)
    assert error.message == f"{file}, line 4: worker.id is given twice (first in line 2)"
    assert error.param == "worker.id"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "CLUSTER__WROKER__ID",
            "unknown setting 'wroker'; allowed: security, nats, discovery, gateway,",
        ),
        ("CLUSTER__WORKER__ENGINES__COUNTS", "unknown setting 'counts'; allowed: count, threads,"),
        ("CLUSTER__", "unknown setting ''; allowed: security,"),
    ],
)
def test_a_variable_that_names_no_setting_is_refused(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    error = failure()
    assert error.message.startswith(f"environment variable {name}: ")
    assert words in error.message
    assert error.param == name


def test_a_bad_value_in_a_variable_names_the_variable(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("worker: {request_queue: {max_depth: 7}}\n")
    monkeypatch.setenv(DEPTH, "lots")
    error = failure(file)
    assert error.message.startswith(f"environment variable {DEPTH}: worker.request_queue.max_depth")
    assert "valid integer" in error.message and "not 'lots'" in error.message


def test_settings_cannot_be_changed() -> None:
    settings = load_settings()
    for section, name in ((settings, "nats"), (settings.worker, "id")):
        with pytest.raises(ValueError, match="frozen"):
            setattr(section, name, None)


SECRETS = [
    f"nats: {{token: {{a: {SECRET}}}}}",
    f"nats: {{token: [{SECRET}]}}",
    f"nats: {{token: {SECRET}, servers: 5}}",
    f"nats: {{token: {SECRET}, tokn: {SECRET}}}",
    f"nats: {{token: a, token: {SECRET}}}",
    f"nats: {{token: {SECRET}}}\nworker: 5",
    f"nats:\n  token: {SECRET}: x\n",
    f"nats: {{token: '{SECRET}\n",
    f"nats:\n  token: @{SECRET}\n",
    f"nats: [token, {SECRET}]",
    f"nats: 'token: {SECRET}'",
    f"nats: {{servers: 'nats://{SECRET}@10.0.0.1:4222'}}",
]


@pytest.mark.parametrize("text", SECRETS)
def test_no_error_shows_the_token(text: str, file: Path) -> None:
    file.write_text(text)
    assert SECRET not in failure(file).message


def test_no_error_shows_a_token_of_the_environment_or_the_flags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert SECRET not in failure(None, {"nats": {"token": [SECRET]}}).message
    monkeypatch.setenv("CLUSTER__NATS", f'{{"token": "{SECRET}"')
    assert SECRET not in failure().message


def test_neither_repr_nor_json_shows_the_token() -> None:
    settings = load_settings(None, {"nats": {"token": SECRET}})
    for shown in (repr(settings), str(settings), settings.model_dump_json(), repr(settings.nats)):
        assert SECRET not in shown
        assert "token" in shown
