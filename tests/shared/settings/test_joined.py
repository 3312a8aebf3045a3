"""Settings of a cluster that was joined: they hold, unless somebody names another server."""

from pathlib import Path
from typing import Any

import pytest

from shared.errors import SettingsError
from shared.settings import load_settings

JOINED: dict[str, Any] = {
    "nats": {"servers": ["tls://a:4222"], "nkey_seed_file": "/seed"},
    "security": {"strict_inbox": True},
    "worker": {"id": "mac-1"},
}


def test_what_it_does_not_say_comes_from_elsewhere(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("worker: {labels: {room: attic}}\nlogging: {level: debug}\n")
    monkeypatch.setenv("CLUSTER__WORKER__DRAIN_TIMEOUT_MS", "7")
    settings = load_settings(file, {"worker": {"models": ["m"]}}, JOINED)
    assert settings.nats.servers == ["tls://a:4222"]
    assert (settings.worker.id, settings.worker.labels) == ("mac-1", {"room": "attic"})
    assert (settings.worker.drain_timeout_ms, settings.worker.models) == (7, ["m"])
    assert settings.logging.level == "debug"


@pytest.mark.parametrize("source", ["flag", "file", "variable", "json variable"])
def test_who_names_a_server_goes_there_as_if_nothing_was_joined(
    source: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {}
    match source:
        case "flag":
            flags = {"nats": {"servers": ["nats://b:1"]}}
        case "file":
            file.write_text("nats: {servers: ['nats://b:1']}\n")
        case "variable":
            monkeypatch.setenv("CLUSTER__NATS__SERVERS", '["nats://b:1"]')
        case _:
            monkeypatch.setenv("CLUSTER__NATS", '{"servers": ["nats://b:1"]}')
    settings = load_settings(file if file.exists() else None, flags, JOINED)
    assert settings.nats.servers == ["nats://b:1"] and settings.nats.nkey_seed_file is None
    assert not settings.security.strict_inbox and settings.worker.id is None


def test_what_says_otherwise_is_refused_by_its_source(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=r"^command line: worker.id: 'b', but .* 'mac-1'"):
        load_settings(None, {"worker": {"id": "b"}}, JOINED)
    file.write_text("# none\nsecurity:\n  strict_inbox: false\n")
    with pytest.raises(SettingsError, match=r"line 3: security.strict_inbox: False, but"):
        load_settings(file, None, JOINED)
    file.write_text("worker:\n  id: mac-1\n")  # the same is no contradiction
    assert load_settings(file, None, JOINED).worker.id == "mac-1"
    monkeypatch.setenv("CLUSTER__WORKER__ID", "c")
    with pytest.raises(SettingsError, match=r"^environment variable CLUSTER__WORKER__ID: .* 'c'"):
        load_settings(file, None, JOINED)
