"""Settings of some workers only."""

from pathlib import Path
from typing import Any

import pytest

from shared.errors import SettingsError
from shared.settings import load_settings
from shared.settings.load import read_text
from shared.settings.overrides import WorkerProperties
from shared.settings.tree import WorkerSelector

MAC = WorkerProperties("mac-1", {"room": "attic", "desk": "3"}, "Apple M2 Ultra", 64_000_000_000)


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ({"workers": ["mac-1"]}, True),
        ({"workers": ["mac-2", "mac-*"]}, True),
        ({"workers": ["mac-2"]}, False),
        ({"workers": ["Mac-1"]}, False),
        ({"labels": {"room": "attic"}}, True),
        ({"labels": {"room": "attic", "desk": "4"}}, False),
        ({"labels": {"floor": "1"}}, False),
        ({"chip": "m2"}, True),
        ({"chip": "M3"}, False),
        ({"min_memory_gb": 64}, True),
        ({"min_memory_gb": 65}, False),
        ({"max_memory_gb": 64}, True),
        ({"max_memory_gb": 63}, False),
        ({"workers": ["mac-1"], "chip": "M3"}, False),
    ],
)
def test_whom_it_is_for(match: dict[str, Any], fits: bool) -> None:
    assert MAC.fits(WorkerSelector.model_validate(match)) == fits


TEXT = """
worker:
  drain_timeout_ms: 1
  kv_cache: {memory_mb: 100}
overrides:
  - match: {labels: {room: attic}}
    worker: {drain_timeout_ms: 2, kv_cache: {enabled: false}}
  - match: {workers: [mac-1]}
    worker: {drain_timeout_ms: 3}
    logging: {level: debug}
"""


def test_the_last_one_that_fits_wins_and_the_rest_stays() -> None:
    of_mac = read_text(TEXT, "it", MAC)
    assert of_mac.worker.drain_timeout_ms == 3 and of_mac.logging.level == "debug"
    assert (of_mac.worker.kv_cache.enabled, of_mac.worker.kv_cache.memory_mb) == (False, 100)
    in_attic = read_text(TEXT, "it", WorkerProperties("mac-2", {"room": "attic"}))
    assert in_attic.worker.drain_timeout_ms == 2 and in_attic.logging.level == "info"
    other = read_text(TEXT, "it", WorkerProperties("mac-3"))
    assert other.worker.drain_timeout_ms == 1 and other.worker.kv_cache.enabled


def test_variables_and_flags_of_the_machine_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(TEXT)
    assert load_settings(file, machine=lambda _: MAC).worker.drain_timeout_ms == 3
    monkeypatch.setenv("CLUSTER__WORKER__DRAIN_TIMEOUT_MS", "4")
    assert load_settings(file, machine=lambda _: MAC).worker.drain_timeout_ms == 4
    flags = {"worker": {"drain_timeout_ms": 5}}
    assert load_settings(file, flags, machine=lambda _: MAC).worker.drain_timeout_ms == 5


def test_the_machine_is_asked_with_its_own_settings(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(TEXT + "  - match: {labels: {a: b}}\n    worker: {drain_timeout_ms: 9}\n")
    flags = {"worker": {"labels": {"a": "b"}}}
    settings = load_settings(file, flags, machine=lambda s: WorkerProperties("w", s.worker.labels))
    assert settings.worker.drain_timeout_ms == 9


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("match: {}", "has no condition"),
        ("worker: {drain_timeout_ms: 2}", "line 2: overrides.0.match: Field required"),
        ("match: {workers: [a]}\n    nats: {}", "line 3: overrides.0.nats: unknown key"),
        (
            "match: {workers: [a]}\n    worker: {drain: 2}",
            "line 3: overrides.0.worker.drain: unknown key; allowed here: id, models",
        ),
        (
            "match: {workers: [a]}\n    worker:\n      engines:\n        count: many",
            "line 5: overrides.0.worker.engines.count: Input should be a valid integer",
        ),
        ("match: {workers: [a]}\n    logging: {level: loud}", "overrides.0.logging.level"),
        ("match: {workers: []}", "overrides.0.match.workers"),
        ("match: {min_memory_gb: -1}", "overrides.0.match.min_memory_gb"),
    ],
)
def test_what_is_wrong_is_said_also_where_it_is_for_others(override: str, said: str) -> None:
    text = f"overrides:\n  - {override}\n"
    with pytest.raises(SettingsError) as caught:
        read_text(text, "cluster.yaml", MAC)
    assert said in caught.value.message
