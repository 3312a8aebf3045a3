"""The version that was rolled out to a worker: kept, tried, and left where it is no good."""

from pathlib import Path

import pytest

from shared.errors import SettingsError
from shared.ids import WorkerId
from shared.settings import ClusterSettings
from shared.settings.load import read_text
from shared.settings.rolled_out import RolledOutVersion
from worker.agent.configuration import RolledOutConfiguration

SERVERS = ["nats://a:1", "nats://b:1"]
GOOD = RolledOutVersion(3, "worker: {drain_timeout_ms: 3}")
NEXT = RolledOutVersion(4, "worker: {drain_timeout_ms: 4}")
BROKEN = RolledOutVersion(5, "worker: {drain_timeout_ms: never}")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def load(rolled_out: RolledOutVersion | None) -> ClusterSettings:
    return read_text(rolled_out.text if rolled_out else "{}", "it")


def started() -> RolledOutConfiguration:
    """As after a start of the worker."""
    configuration = RolledOutConfiguration(WorkerId("w"), SERVERS, load)
    configuration.begin()
    return configuration


def drain_timeout_ms() -> int:
    return RolledOutConfiguration(WorkerId("w"), SERVERS, load).begin().worker.drain_timeout_ms


def test_at_first_it_is_the_machines_own_file() -> None:
    assert started().version == 0
    assert drain_timeout_ms() == 30_000


def test_what_was_taken_is_there_after_a_restart() -> None:
    started().switch(GOOD)
    restarted = started()
    assert (restarted.version, restarted.problem) == (3, None)
    restarted.on_ready()
    for _ in range(5):
        again = started()
        assert again.version == 3
        again.on_ready()
    again.switch(None)
    assert started().version == 0


def test_each_worker_of_a_machine_has_its_own_in_each_cluster() -> None:
    started().switch(GOOD)
    assert RolledOutConfiguration(WorkerId("w"), SERVERS[::-1], load).version == 3
    assert RolledOutConfiguration(WorkerId("w"), SERVERS[:1], load).version == 0
    assert RolledOutConfiguration(WorkerId("other"), SERVERS, load).version == 0


def test_a_version_that_ends_the_worker_twice_is_left_for_the_one_before() -> None:
    started().switch(GOOD)
    good = started()
    good.on_ready()
    good.switch(NEXT)
    assert started().version == 4
    assert started().version == 4
    third = started()
    assert third.version == 3
    assert third.problem == "version 4: the worker exited 2 times before it was ready"
    third.on_ready()
    assert started().problem is not None  # until another version comes
    third.switch(NEXT)
    assert started().problem is None


def test_where_the_one_before_is_no_good_either_it_is_the_machines_own() -> None:
    started().switch(GOOD)
    started().switch(NEXT)
    assert [started().version for _ in range(5)] == [4, 4, 3, 3, 0]


def test_a_version_that_this_release_cannot_read_is_left_at_once() -> None:
    started().switch(GOOD)
    started().switch(BROKEN)
    broken = started()
    assert broken.version == 3
    assert broken.problem is not None and "worker.drain_timeout_ms" in broken.problem


def test_a_wrong_file_of_the_machine_is_an_error() -> None:
    def wrong(_: RolledOutVersion | None) -> ClusterSettings:
        raise SettingsError("wrong")

    with pytest.raises(SettingsError):
        RolledOutConfiguration(WorkerId("w"), SERVERS, wrong).begin()


@pytest.mark.parametrize("content", [b"", b"{", b'{"current": 1}', b"\xff"])
def test_what_is_kept_and_cannot_be_read_is_passed_over(home: Path, content: bytes) -> None:
    started().switch(GOOD)
    (kept,) = home.rglob("w.json")
    kept.write_bytes(content)
    assert started().version == 0
