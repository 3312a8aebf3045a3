"""What probes found, over restarts."""

from pathlib import Path

import pytest

from worker.engine import batching_verdicts
from worker.engine.batching_verdicts import BatchingVerdict, BatchingVerdictStore

_ALONE = BatchingVerdict("alone", "log-probabilities differ", probe_s=1.5)


def test_what_was_found_is_there_after_a_restart_without_the_time_it_took(tmp_path: Path) -> None:
    BatchingVerdictStore(tmp_path / "new" / "verdicts.json").save("a", _ALONE)
    again = BatchingVerdictStore(tmp_path / "new" / "verdicts.json")
    assert again.find("a") == BatchingVerdict("alone", "log-probabilities differ")
    assert again.find("b") is None
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["verdicts.json"]


def test_another_release_is_probed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = BatchingVerdictStore(tmp_path / "verdicts.json")
    kept.save("a", _ALONE)
    monkeypatch.setattr(batching_verdicts, "version", lambda package: "99")
    assert kept.find("a") is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"KEY": 1}', b'{"KEY": {}}'])
def test_a_broken_file_holds_nothing_and_is_written_anew(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "verdicts.json"
    file.write_bytes(content.replace(b"KEY", batching_verdicts._key("a").encode()))
    kept = BatchingVerdictStore(file)
    assert kept.find("a") is None
    kept.save("a", _ALONE)
    assert kept.find("a") is not None


def test_where_nothing_can_be_written_the_verdict_is_lost_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for kept in (
        BatchingVerdictStore(None),
        BatchingVerdictStore(tmp_path / "file" / "verdicts.json"),
    ):
        kept.save("a", _ALONE)
        assert kept.find("a") is None


def test_the_oldest_go(tmp_path: Path) -> None:
    kept = BatchingVerdictStore(tmp_path / "verdicts.json")
    for number in range(258):
        kept.save(str(number), _ALONE)
    assert [kept.find(number) is not None for number in ("1", "2", "257")] == [False, True, True]
