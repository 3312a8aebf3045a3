"""What a model folder holds: accepted when it is whole, and otherwise one error that helps."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.errors import ModelError
from tests.worker.models.model_folders import safetensors, with_header, write_model
from worker.models.files import ModelFolder, inspect

_WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def _error(folder: Path, *, trust_remote_code: bool = False) -> str:
    with pytest.raises(ModelError) as raised:
        inspect(folder, trust_remote_code=trust_remote_code)
    return raised.value.message


def test_a_model_that_mlx_wrote_is_whole(tiny_model: Path) -> None:
    import mlx.core as mx

    weights = mx.load(str(tiny_model / _WEIGHTS))
    assert isinstance(weights, dict)
    in_memory_bytes = sum(array.nbytes for array in weights.values())
    assert inspect(tiny_model, trust_remote_code=False) == ModelFolder(tiny_model, in_memory_bytes)


def test_the_bytes_of_all_shards_are_counted(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", shards_bytes=(1000, 0, 234))
    (folder / "adapter.safetensors").write_bytes(b"not loaded, so not looked at")
    assert inspect(folder, trust_remote_code=False).weight_bytes == 1234


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff\xfe{}", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[]", "is JSON, but not an object"),
        (b" " * 16_000_001, "has 16000001 bytes; the maximum is 16000000"),
    ],
)
def test_a_config_that_is_none_is_named(folder: Path, text: bytes, said: str) -> None:
    (folder / "config.json").write_bytes(text)
    assert f"{folder / 'config.json'} {said}" in _error(folder)


def _missing(path: Path) -> None:
    pass


def _link_to_nothing(path: Path) -> None:
    path.symlink_to(path.with_name("nothing"))


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def _link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("name", ["config.json", _WEIGHTS])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_missing, ""),
        (_link_to_nothing, "is missing"),
        (_link_to_itself, "cannot be read: "),
        (_link_to_a_device, "is not a regular file"),
        (Path.mkdir, "is not a regular file"),
        (os.mkfifo, "is not a regular file"),
    ],
)
def test_a_file_that_is_something_else_is_an_error(
    folder: Path, name: str, make: Callable[[Path], None], said: str
) -> None:
    (folder / name).unlink()
    make(folder / name)
    assert said in _error(folder)


def test_a_folder_that_is_none_is_an_error(folder: Path) -> None:
    assert "is missing" in _error(folder / "nowhere")
    assert "cannot be read" in _error(folder / "config.json")
    assert "is not a path" in _error(Path("a\0b"))


def test_code_that_a_model_brings_must_be_trusted(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", model_file="modeling.py")
    error = _error(folder)
    assert "'modeling.py'" in error and "set trust_remote_code: true" in error
    inspect(folder, trust_remote_code=True)
    (folder / "config.json").write_text(json.dumps({"model_file": 5}))
    assert "is not a file name" in _error(folder, trust_remote_code=True)


def test_code_that_only_transformers_would_run_is_nothing_to_refuse(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", auto_map={"AutoModel": "modeling.Model"})
    inspect(folder, trust_remote_code=False)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "so it has no weights"),
        (["pytorch_model.bin"], "pytorch_model.bin is a pickle, which is not loaded"),
        (["a.gguf", "training_args.bin"], "the format of a.gguf is not supported"),
        (["weights.npz"], "the format of weights.npz is not supported"),
        (["weights.safetensors"], "the format of weights.safetensors is not supported"),
    ],
)
def test_weights_that_are_not_loaded_are_named(tmp_path: Path, names: list[str], said: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in names:
        (tmp_path / name).touch()
    error = _error(tmp_path)
    assert f"{tmp_path} has no model*.safetensors" in error and said in error


def test_shards_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", shards_bytes=(10, 20, 30))
    (folder / "model-00002.safetensors").unlink()
    assert "model-00002.safetensors is missing, which" in _error(folder)
    (folder / "model-00001.safetensors").unlink()
    assert "model-00001.safetensors is missing" in _error(folder)
    assert "(and 1 more)" in _error(folder)


def test_a_download_that_was_cut_before_any_weights_came_is_to_be_fetched_again(
    tmp_path: Path,
) -> None:
    folder = write_model(tmp_path / "model", shards_bytes=(10, 20, 30, 40, 50, 60))
    for shard in folder.glob("model-*.safetensors"):
        shard.unlink()
    error = _error(folder)
    assert f"{folder / 'model-00001.safetensors'} is missing" in error
    assert "(and 5 more): model-00002.safetensors, model-00003.safetensors" in error
    assert error.endswith("; fetch it again")


def test_weights_that_are_numbered_through_must_all_be_there_without_an_index_too(
    folder: Path,
) -> None:
    (folder / _WEIGHTS).rename(folder / "model-00002-of-00003.safetensors")
    error = _error(folder)
    assert f"{folder / 'model-00001-of-00003.safetensors'} is missing (and 1 more)" in error
    assert "model-00003-of-00003.safetensors; fetch it again" in error
    for number in (1, 3):
        (folder / f"model-0000{number}-of-00003.safetensors").write_bytes(safetensors(10))
    assert inspect(folder, trust_remote_code=False).weight_bytes == 1020


@pytest.mark.parametrize(
    "index", ["{", "[]", "{}", '{"weight_map": 1}', '{"weight_map": {"a": 1}}']
)
def test_a_broken_index_is_named(folder: Path, index: str) -> None:
    (folder / "model.safetensors.index.json").write_text(index)
    assert "model.safetensors.index.json " in _error(folder)


def test_a_file_that_was_cut_or_grew_is_named_with_its_bytes(folder: Path) -> None:
    whole = (folder / _WEIGHTS).read_bytes()
    (folder / _WEIGHTS).write_bytes(whole[:-1])
    assert f"is cut short: {len(whole) - 1} of {len(whole)} bytes" in _error(folder)
    (folder / _WEIGHTS).write_bytes(whole + b"\0")
    assert f"{len(whole) + 1} instead of {len(whole)} bytes" in _error(folder)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(length=st.integers(0, len(safetensors(100)) - 1))
def test_no_part_of_a_file_passes_for_the_whole(folder: Path, length: int) -> None:
    (folder / _WEIGHTS).write_bytes(safetensors(100)[:length])
    assert "is cut short" in _error(folder)


def _tensor(dtype: Any = "U8", shape: Any = (4,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    "tensor",
    [
        5,
        {},
        _tensor(dtype=8),
        _tensor(shape=[-4]),
        _tensor(shape=[4.0]),
        _tensor(shape=[True, 4]),
        _tensor(shape=[5]),
        _tensor(shape=[2**40, 2**40], offsets=[0, 4]),
        _tensor(shape=[1] * 17),
        _tensor(dtype="F32", shape=[4]),
        _tensor(offsets=[-4, 0]),
        _tensor(offsets=[4, 0]),
        _tensor(offsets=[0, 4, 8]),
        _tensor(offsets=["0", "4"]),
        _tensor(dtype="F3", offsets=[0, 10**30]),
    ],
)
def test_a_broken_header_names_the_tensor(folder: Path, tensor: Any) -> None:
    (folder / _WEIGHTS).write_bytes(with_header({"good": _tensor(), "bad": tensor}, b"data"))
    assert f"the header of {folder / _WEIGHTS} is broken: tensor 'bad'" in _error(folder)


@pytest.mark.parametrize(
    ("header_bytes", "said"),
    [
        (2**64 - 1, "is not a safetensors file"),
        (100_000_001, "is not a safetensors file"),
        (100_000_000, "is cut short"),
        (0, "is not valid JSON"),
    ],
)
def test_an_absurd_header_length_is_an_error(folder: Path, header_bytes: int, said: str) -> None:
    (folder / _WEIGHTS).write_bytes(struct.pack("<Q", header_bytes) + b"{}")
    assert said in _error(folder)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "x"]), inner)
    ),
    max_leaves=8,
)
_sizes = st.lists(st.integers(-2, 9) | _json, max_size=3)
_near_tensors = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["U8", "F32", "Q4"]) | _json},
    optional={"shape": _sizes, "data_offsets": _sizes},
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=40)
    | st.builds(with_header, _json, st.binary(max_size=9))
    | st.builds(
        with_header, st.dictionaries(st.text(max_size=3), _near_tensors), st.binary(max_size=9)
    )
)
def test_any_weights_and_config_end_in_a_model_or_one_error(folder: Path, content: bytes) -> None:
    for name in (_WEIGHTS, "config.json"):
        good = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        try:
            weight_bytes = inspect(folder, trust_remote_code=False).weight_bytes
            assert weight_bytes == 1000 or weight_bytes < len(content)
        except ModelError as error:
            assert str(folder) in error.message
        (folder / name).write_bytes(good)
