"""What differs between two versions, and what it takes until that holds."""

import pytest

from shared.settings.changes import (
    SettingDifference,
    changes,
    effect_on_controller,
    effect_on_worker,
)
from shared.settings.load import read_text

BASE = """
skills: {chat: [a, b]}
models: {a: {path: /a}, b: {path: /b}}
"""


def test_all_that_differs_is_named_with_both_values() -> None:
    before = read_text(BASE, "1")
    after = read_text(
        "skills: {chat: [a]}\nmodels: {a: {path: /a}}\nlogging: {level: debug}\n", "2"
    )
    assert changes(before, after) == [
        SettingDifference("skills.chat", ["a", "b"], ["a"]),
        SettingDifference("models.b.path", "/b", None),
        SettingDifference("models.b.priority", "medium", None),
        SettingDifference("models.b.pinned", False, None),
        SettingDifference("models.b.trust_remote_code", False, None),
        SettingDifference("logging.level", "info", "debug"),
    ]
    assert changes(before, before) == []


@pytest.mark.parametrize(
    ("more", "worker", "controller"),
    [
        ("", None, None),
        ("logging: {level: debug}", "live", "live"),
        ("logging: {format: json}", "restart", "restart"),
        ("worker: {drain_timeout_ms: 5}", "live", None),
        ("worker: {request_queue: {max_depth: 7}}", "live", None),
        ("worker: {request_queue: {priority_levels: 2}}", "restart", None),
        ("worker: {resource_limits: {enabled: false}}", "live", None),
        ("worker: {continuous_batching: {enabled: false}}", "restart", None),
        ("worker: {kv_cache: {prompt_rules: [{pattern: x}]}}", "restart", "live"),
        ("worker: {id: x, labels: {a: b}}", None, None),
        ("controller: {retry: {enabled: false}}", None, "live"),
        ("controller: {routing: {policy: least-busy}}", None, "live"),
        ("controller: {failover: {migration_limit: 1}}", None, "live"),
        ("controller: {failover: {missed_heartbeats: 5}}", "restart", "restart"),
        ("controller: {lease: {ttl_s: 5}}", None, "restart"),
        ("controller: {id: x}", None, None),
        ("gateway: {port: 1}", None, None),
        ("telemetry: {otlp_endpoint: 'http://c:4318'}", "restart", "restart"),
        ("telemetry: {headers: {a: b}}", None, None),
        ("nats: {servers: ['nats://x:1']}", None, None),
    ],
)
def test_what_it_takes(more: str, worker: str | None, controller: str | None) -> None:
    before, after = read_text(BASE, "1"), read_text(BASE + more, "2")
    assert effect_on_worker(before, after) == worker
    assert effect_on_controller(before, after) == controller
    assert effect_on_worker(after, before) == worker


@pytest.mark.parametrize(
    ("text", "effect"),
    [
        ("skills: {chat: [b, a]}\nmodels: {a: {path: /a}, b: {path: /b}}", "models"),
        ("skills: {chat: [a, b, c]}\nmodels: {a: {path: /a}, b: {path: /b}}", "models"),
        ("skills: {chat: [a], x: [b]}\nmodels: {a: {path: /a}, b: {path: /b}}", "models"),
        ("skills: {chat: [a]}\nmodels: {a: {path: /a}, b: {path: /b}}", None),
        ("skills: {chat: [a, b]}\nmodels: {a: {path: /a}}", "restart"),
        ("skills: {chat: [a]}\nmodels: {a: {path: /a}}", "restart"),
        ("skills: {chat: [a, b]}\nmodels: {a: {path: /other}, b: {path: /b}}", "restart"),
    ],
)
def test_models_that_come_are_loaded_and_one_that_goes_needs_a_restart(
    text: str, effect: str | None
) -> None:
    assert effect_on_worker(read_text(BASE, "1"), read_text(text, "2")) == effect
