"""A version that was rolled out stands in for the file, but for what is the machine's own."""

from pathlib import Path

import pytest

from shared.errors import SettingsError
from shared.settings import load_settings
from shared.settings.rolled_out import RolledOutVersion, combined, ignored

OWN = """
nats: {servers: ['nats://here:1']}
worker:
  id: mac-1
  labels: {room: attic}
  drain_timeout_ms: 1
  kv_cache: {disk_path: /ssd, memory_mb: 1}
logging: {level: debug}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "cluster.yaml"
    file.write_text(OWN)
    return file


def test_it_stands_in_for_the_file(own: Path) -> None:
    text = "worker: {kv_cache: {memory_mb: 2}, id: theirs}\nnats: {servers: ['nats://there:1']}\n"
    settings = load_settings(own, rolled_out=RolledOutVersion(7, text))
    assert settings.nats.servers == ["nats://here:1"]
    worker = settings.worker
    assert (worker.id, worker.labels, worker.kv_cache.disk_path) == (
        "mac-1",
        {"room": "attic"},
        "/ssd",
    )
    assert (worker.drain_timeout_ms, worker.kv_cache.memory_mb) == (30_000, 2)
    assert settings.logging.level == "info"


def test_flags_and_variables_of_the_machine_win(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTER__WORKER__DRAIN_TIMEOUT_MS", "4")
    rolled_out = RolledOutVersion(7, "worker: {drain_timeout_ms: 5, models: [theirs]}")
    settings = load_settings(own, {"worker": {"models": ["ours"]}}, rolled_out=rolled_out)
    assert (settings.worker.drain_timeout_ms, settings.worker.models) == (4, ["ours"])


def test_what_is_wrong_names_the_version_or_the_file(own: Path) -> None:
    with pytest.raises(SettingsError, match=r"^cluster.yaml, version 7, line 2: worker.drain_t"):
        load_settings(own, rolled_out=RolledOutVersion(7, "worker:\n  drain_timeout_ms: -1\n"))
    own.write_text("worker:\n  id: a.b\n")
    with pytest.raises(SettingsError, match=rf"^{own}, line 2: worker.id"):
        load_settings(own, rolled_out=RolledOutVersion(7, "logging: {level: info}\n"))
    with pytest.raises(SettingsError, match=r"^cluster.yaml, version 7, line 1: no valid YAML"):
        load_settings(own, rolled_out=RolledOutVersion(7, "{"))


def test_what_it_does_not_set_is_named() -> None:
    said = {"nats": {"servers": []}, "worker": {"id": "x", "models": []}, "security": {}}
    assert ignored(said) == ["nats", "security", "worker.id"]
    assert combined({}, said) == {"worker": {"models": []}}
    assert said["worker"] == {"id": "x", "models": []}  # nothing is done to it
