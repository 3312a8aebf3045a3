"""Blocks on disk: within their bounds, found after a restart, and never another text's."""

import multiprocessing
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.kv_memory.kept_files import KeptFiles, bytes_on_disk, content_of
from worker.kv_memory import folder as folder_module
from worker.kv_memory.file_threads import BlockFolderUnusable
from worker.kv_memory.folder import BlockFolder, BlockFolderError, BlockFolderInUseError

MB = 2**20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def kept(path: Path) -> Iterator[KeptFiles]:
    kept = KeptFiles(path)
    yield kept
    kept.close()


def test_what_was_written_is_read_again(kept: KeptFiles) -> None:
    first = kept.block(1)
    second = kept.block(2, first)
    for block in (first, second):
        assert kept.write(block)
    assert kept.has(first)
    assert kept.has(second)
    assert kept.tier.held_bytes == sum(path.stat().st_blocks * 512 for path in kept.files)
    assert kept.tier.statistics.written == kept.tier.statistics.read == 2


def test_a_new_process_finds_all_files_without_reading_them(kept: KeptFiles, path: Path) -> None:
    blocks = [kept.block(1)]
    for number in range(5):
        blocks.append(kept.block(number, blocks[-1]))
    assert all(map(kept.write, blocks))
    kept.close()
    for file in kept.files:
        file.chmod(0)  # for whoever is not root; and the file's times tell for everybody
        os.utime(file, (1, 1))
    again = KeptFiles(path)
    assert [block.key for block in again.tree.find(blocks[-1].key).path] == [  # type: ignore[union-attr]
        block.key for block in blocks
    ]
    assert again.tier.held_bytes == kept.tier.held_bytes
    assert again.tier.written_today == kept.tier.written_today > 0
    assert all(file.stat().st_atime == 1 for file in again.files)
    again.close()


def test_files_never_take_more_than_they_may(path: Path) -> None:
    cap = 8 * MB
    kept = KeptFiles(path, cap_bytes=cap)
    for number in range(60):
        assert kept.write(kept.block(number), 300_000)
        assert bytes_on_disk(path) <= cap
        assert kept.tier.held_bytes <= cap
    assert kept.tier.statistics.evictions > 0
    assert len(kept.files) >= 20
    # Who was written last is there, who was written first is not.
    assert kept.has(kept.block(59), 300_000)
    assert kept.tree.find(kept.block(0).key).part("kv").file_bytes == 0  # type: ignore[union-attr]
    kept.close()
    smaller = KeptFiles(path, cap_bytes=4 * MB)
    smaller.close()
    assert bytes_on_disk(path) <= 4 * MB


def test_who_was_used_last_goes_last(path: Path) -> None:
    kept = KeptFiles(path, cap_bytes=3 * MB)
    blocks = [kept.block(number) for number in range(5)]
    for block in blocks:
        assert kept.write(block, 300_000)
    kept.tier.touch(blocks[0])
    for number in range(10, 14):
        kept.tier.touch(blocks[0])
        assert kept.write(kept.block(number), 300_000)
    assert kept.has(blocks[0], 300_000)
    assert not blocks[1].part("kv").file_bytes
    kept.close()


def test_who_is_in_use_or_pinned_stays(path: Path) -> None:
    kept = KeptFiles(path, cap_bytes=2 * MB)
    used, pinned = kept.block(1), kept.block(2)
    assert kept.write(used, 300_000)
    assert kept.write(pinned, 300_000)
    used.users, pinned.pins = 1, 1
    for number in range(10, 20):
        kept.write(kept.block(number), 300_000)
    assert kept.has(used, 300_000)
    assert kept.has(pinned, 300_000)
    kept.close()


def test_what_is_being_written_is_not_written_again(kept: KeptFiles) -> None:
    block = kept.block(1)
    for _ in range(2):  # by two texts that end alike, one step apart
        assert kept.tier.write(block, "kv", content_of(block, 4000))
    kept.wait()
    assert not kept.tier.busy
    assert block.users == 0
    assert kept.has(block)
    assert kept.tier.statistics.written == 1
    assert kept.tier.held_bytes == kept.files[0].stat().st_blocks * 512


def test_no_more_is_written_a_day_than_may_be(path: Path) -> None:
    kept = KeptFiles(path, daily_bytes=MB)
    written = [kept.write(kept.block(number), 100_000) for number in range(20)]
    assert 5 <= sum(written) <= 10
    assert "disk_writes_mb_per_day" in (kept.tier.problem or "")
    kept.close()
    again = KeptFiles(path, daily_bytes=MB)
    assert again.tier.written_today == kept.tier.written_today
    assert not again.write(again.block(100), 300_000)
    again.close()


def test_another_day_begins_at_nothing(
    kept: KeptFiles, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept.write(kept.block(1))
    kept.close()
    monkeypatch.setattr(folder_module, "_today", lambda: 10**6)
    again = KeptFiles(path)
    assert again.tier.written_today == 0
    again.close()


# Files that are not what they were.


def _truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _grow_beyond_memory(file: Path) -> None:
    os.truncate(file, 2**41)  # it is full of holes, and takes no room on the disk


def _claim_more(file: Path) -> None:
    """A file that says itself that it is much longer."""
    raw = file.read_bytes()
    file.write_bytes(raw.replace(b",4000]", b",9999]"))


def _flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[-100] ^= 1
    file.write_bytes(raw)


def _replace_by_another(file: Path) -> None:
    other = next(path for path in file.parent.glob("*.safetensors") if path != file)
    file.write_bytes(other.read_bytes())


def _replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    "harm",
    [
        _truncate,
        _grow_beyond_memory,
        _claim_more,
        _flip,
        Path.unlink,
        _replace_by_another,
        _replace_by_folder,
    ],
    ids=lambda harm: harm.__name__,
)
def test_a_file_that_was_harmed_is_found_out_and_counted(kept: KeptFiles, harm: object) -> None:
    block, other = kept.block(1), kept.block(2)
    assert kept.write(block)
    assert kept.write(other)
    name = next(file for file in kept.files if file.name.startswith(block.key.hex()))
    harm(name)  # type: ignore[operator]
    assert kept.read(block) is None
    assert kept.tier.statistics.broken + kept.tier.statistics.failed == 1
    assert not block.part("kv").file_bytes
    assert kept.has(other)


def test_a_harmed_file_is_written_anew(kept: KeptFiles) -> None:
    block = kept.block(1)
    assert kept.write(block)
    _flip(kept.files[0])
    assert kept.read(block) is None
    assert kept.write(block)
    assert kept.has(block)


# Disks that do not take more.


def test_what_cannot_be_deleted_counts_as_before(kept: KeptFiles) -> None:
    block = kept.block(1)
    assert kept.write(block)
    held_bytes = kept.tier.held_bytes
    _replace_by_folder(kept.files[0])
    kept.tier.drop(block, "kv")
    assert kept.tier.held_bytes == 0
    kept.wait()
    assert kept.tier.held_bytes == held_bytes
    assert kept.tier.problem is not None and kept.tier.statistics.failed == 1


def test_a_full_disk_stops_writing_for_a_while_and_harms_nothing(kept: KeptFiles) -> None:
    block = kept.block(1)
    assert kept.write(block)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        assert not kept.write(kept.block(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert kept.tier.problem is not None
    assert not kept.tier.accepts_writes
    assert kept.tier.statistics.failed == 1
    assert kept.has(block)
    assert len(kept.files) == len(list(kept.tier.path.glob("*kv*"))) == 1


def test_a_disk_that_is_nearly_full_is_left_alone(
    kept: KeptFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "_MIN_FREE_BYTES", 2**60)
    assert not kept.write(kept.block(1))
    assert "free" in (kept.tier.problem or "")
    assert not kept.files


def _hold(path: Path, held: object, end: object) -> None:
    folder = BlockFolder(path)
    folder.open()
    held.set()  # type: ignore[attr-defined]
    end.wait()  # type: ignore[attr-defined]


def test_a_folder_belongs_to_one_process_at_a_time(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, end = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(path, held, end))
    process.start()
    try:
        assert held.wait(60)
        with pytest.raises(BlockFolderInUseError, match="disk_path"):
            BlockFolder(path).open()
    finally:
        process.kill()  # no time to give it back
        process.join()
    folder = BlockFolder(path)
    folder.open()
    folder.close()


@pytest.mark.parametrize("where", ["a file", "below a file", "/proc/kv"])
def test_a_folder_that_cannot_be_is_told_with_its_reason(tmp_path: Path, where: str) -> None:
    file = tmp_path / "file"
    file.touch()
    path = {"a file": file, "below a file": file / "kv"}.get(where, Path(where))
    with pytest.raises(BlockFolderError, match=str(path)):
        BlockFolder(path).open()
    kept = KeptFiles(path)
    assert not kept.tier.accepts_writes
    assert str(path) in (kept.tier.problem or "")
    kept.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_only_be_read_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(BlockFolderError):
        BlockFolder(tmp_path / "kv").open()


def test_nobody_else_may_read_what_people_said(kept: KeptFiles) -> None:
    assert kept.write(kept.block(1))
    assert stat.S_IMODE(kept.tier.path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in kept.tier.path.iterdir()} == {0o600}


def test_what_a_dead_process_left_unfinished_goes(kept: KeptFiles, path: Path) -> None:
    assert kept.write(kept.block(1))
    kept.close()
    (path / f"{kept.files[0].name}.part").write_bytes(b"half")
    again = KeptFiles(path)
    assert not list(path.glob("*.part"))
    assert len(again.files) == 1
    again.close()


def test_unusable_is_said_once_and_for_all(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    kept = KeptFiles(file)
    assert kept.tier.handle_result(BlockFolderUnusable("no")) is None
    assert not kept.tier.accepts_writes
    kept.close()
