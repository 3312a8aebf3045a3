"""What the cache of the hub holds, as the hub's own library left it, and when it is broken."""

from pathlib import Path

import pytest

from worker.peer_files.cached_files import find_cached_files

REPO = "owner/model"
COMMIT = "a" * 40
SHA = "1" * 64
GIT = "2" * 40


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models--owner--model"
    for content in (SHA, GIT, f"{'3' * 64}.incomplete", "readme"):
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        (folder / "blobs" / content).write_text(content)
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to(f"../../blobs/{GIT}")
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{SHA}")
    (snapshot / "gone.json").symlink_to(f"../../blobs/{'4' * 40}")
    (snapshot / "copied.txt").write_text("no link")
    (folder / "refs" / "pr").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "refs" / "pr" / "1").write_text("not a commit")
    return tmp_path


def test_contents_and_files_of_a_revision(repository: Path) -> None:
    for revision in (None, "main", COMMIT):
        cached = find_cached_files(repository, REPO, revision)
        assert set(cached.contents) == {SHA, GIT}
        assert cached.contents[SHA].read_text() == SHA
        assert cached.sizes_bytes == {SHA: 64, GIT: 40}
        assert cached.commit == COMMIT
        assert cached.files == {"config.json": GIT, "model.safetensors": SHA}


@pytest.mark.parametrize("revision", ["other", "pr/1", "../../..", "/etc/passwd", "x\0y", ""])
def test_a_revision_that_is_not_there_lists_nothing(repository: Path, revision: str) -> None:
    cached = find_cached_files(repository, REPO, revision or "no")
    assert (cached.commit, cached.files) == ("", {}) and set(cached.contents) == {SHA, GIT}


@pytest.mark.parametrize("repo", ["owner/other", "nobody/model"])
def test_what_is_not_there_is_nothing(repository: Path, repo: str) -> None:
    cached = find_cached_files(repository, repo, None)
    assert (dict(cached.contents), cached.commit, dict(cached.files)) == ({}, "", {})
