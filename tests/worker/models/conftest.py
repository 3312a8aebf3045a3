"""A hub of the test's own, and a small model for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub import HubStandIn
from tests.worker.models.fetching import WEIGHT_BYTES
from tests.worker.models.model_folders import write_model


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    """A hub, and an environment in which it is the one."""
    for name in ("HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("NO_PROXY", "*")
    with HubStandIn() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", shards_bytes=(WEIGHT_BYTES,))
