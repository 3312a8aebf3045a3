"""A copy of who may take part: whole, private, and nothing else is taken for one."""

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from shared.access.archive import back_up, restore
from shared.access.folder import AccessFolder, new_listening
from shared.errors import SettingsError

NOW = "2026-11-24T12:00:00Z"


@pytest.fixture
def access(tmp_path: Path) -> AccessFolder:
    access = AccessFolder.create(tmp_path / "access", new_listening(names=["mac-1.local"]))
    with access.changing():
        access.add("worker", "mac-2", now=NOW)
    (access.path / "jetstream").mkdir()
    (access.path / "jetstream" / "large").write_bytes(bytes(1000))
    (access.path / "nats-server.pid").write_text("1")
    return access


def test_what_is_restored_is_what_was(access: AccessFolder, tmp_path: Path) -> None:
    copy, elsewhere = tmp_path / "copy.tar.gz", tmp_path / "new" / "place"
    back_up(access, copy)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    again = restore(copy, elsewhere)
    assert again.membership("worker", "mac-2") == access.membership("worker", "mac-2")
    assert (elsewhere / "authority.key").read_bytes() == (
        access.path / "authority.key"
    ).read_bytes()
    assert not (elsewhere / "jetstream").exists() and not (elsewhere / "nats-server.pid").exists()
    config = (elsewhere / "nats-server.json").read_text()
    assert str(elsewhere) in config and str(access.path) not in config
    for path in (elsewhere, *elsewhere.rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077 or path.name == ".lock", path
    with again.changing():
        again.add("worker", "mac-3", now=NOW)


def test_nothing_is_written_over(access: AccessFolder, tmp_path: Path) -> None:
    copy = tmp_path / "copy.tar.gz"
    back_up(access, copy)
    with pytest.raises(SettingsError, match="exists already"):
        back_up(access, copy)
    with pytest.raises(SettingsError, match="exists already"):
        restore(copy, access.path)


def archive_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


@pytest.mark.parametrize(
    "members",
    [
        [],
        [(tarfile.TarInfo("users.json"), b"{}")],
        [(tarfile.TarInfo("../outside"), b"x")],
        [(tarfile.TarInfo("/tmp/outside-of-all"), b"x")],
        [(link("seeds", "/etc"), b"")],
    ],
    ids=["empty", "no users", "above", "absolute", "link"],
)
def test_what_is_no_copy_leaves_nothing(
    members: list[tuple[tarfile.TarInfo, bytes]], tmp_path: Path
) -> None:
    file = archive_of(tmp_path / "a.tar.gz", *members)
    with pytest.raises(SettingsError, match=r"a\.tar\.gz"):
        restore(file, tmp_path / "in" / "access")
    assert os.listdir(tmp_path / "in") == [] and not (tmp_path / "outside").exists()
    assert not Path("/tmp/outside-of-all").exists()


def test_what_is_no_archive_is_said(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    for name, why in (("text", "no such copy"), ("gone", "No such file")):
        with pytest.raises(SettingsError, match=why):
            restore(tmp_path / name, tmp_path / "access")
    assert not (tmp_path / "access").exists()
