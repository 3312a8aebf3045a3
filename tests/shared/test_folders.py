"""Files with prompts, names and keys are their owner's own."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.cli.local.child import Child
from shared.folders import append_private, make_private


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_made_private_also_if_it_was_open(tmp_path: Path) -> None:
    for folder in (tmp_path / "new" / "folder", tmp_path / "old"):
        if folder.name == "old":
            folder.mkdir(mode=0o755)
        make_private(folder)
        make_private(folder)
        assert _mode(folder) == 0o700


def test_a_file_is_created_private_and_appended_to(tmp_path: Path) -> None:
    file = tmp_path / "log"
    for line in (b"a", b"b"):
        with append_private(file) as opened:
            opened.write(line)
    assert file.read_bytes() == b"ab" and _mode(file) == 0o600


@pytest.mark.anyio
async def test_the_log_of_a_child_is_private(tmp_path: Path) -> None:
    child = Child("x", ["/bin/sh", "-c", "echo said"], tmp_path / "x.log", {})
    await child.start()
    assert await child.wait() == 0
    assert child.last_lines() == "said" and _mode(child.log) == 0o600
