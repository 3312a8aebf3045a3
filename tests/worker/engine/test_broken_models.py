"""Folders that hold no whole model: the engine says which, and goes on with the others."""

import json
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.ids import ModelId
from tests.crashing.folders import make_crashing_model
from tests.worker.engine.running_engine import RunningEngine, running_engine
from worker.engine import engine_models, model, model_tokenizer
from worker.link.facts import ModelFailed, ModelLoaded

_WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[RunningEngine]:
    with running_engine(tiny_model) as running:
        yield running


def _remove(*names: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return damage


def _cut(name: str, length: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[:length])

    return damage


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return damage


def _configure(name: str = "config.json", **fields: Any) -> Callable[[Path], None]:
    """Changes a JSON file of the folder; a field of `...` is taken away."""

    def damage(folder: Path) -> None:
        body = {**json.loads((folder / name).read_text()), **fields}
        kept = {key: value for key, value in body.items() if value is not ...}
        (folder / name).write_text(json.dumps(kept))

    return damage


def _first_tensor(**fields: Any) -> Callable[[Path], None]:
    """Changes what the header of the weights says of their first tensor."""

    def change(header: dict[str, Any]) -> None:
        header[next(name for name in header if name != "__metadata__")].update(fields)

    return _header(change)


def _header(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / _WEIGHTS
        content = path.read_bytes()
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])

    return damage


def _drop_a_tensor(header: dict[str, Any]) -> None:
    del header[next(name for name in header if name != "__metadata__")]


def _add_a_tensor(header: dict[str, Any]) -> None:
    header["model.extra.weight"] = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _replace_config_by_a_folder(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()


_DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty folder": _empty,
    "no weights": _remove(_WEIGHTS),
    "cut weights": _cut(_WEIGHTS, 5000),
    "scrambled weights": _write(_WEIGHTS, b"\xff" * 4096),
    "empty weights": _write(_WEIGHTS, b""),
    "cut header length": _write(_WEIGHTS, b"\0\0\0\0"),
    "header of 2^63 bytes": _write(_WEIGHTS, struct.pack("<Q", 2**63) + b"{}"),
    "header of 1 GB": _write(_WEIGHTS, struct.pack("<Q", 10**9) + b"{}"),
    "broken header": _write(_WEIGHTS, struct.pack("<Q", 5) + b'{"a":'),
    "header is a list": _write(_WEIGHTS, struct.pack("<Q", 2) + b"[]"),
    "header without tensors": _write(_WEIGHTS, struct.pack("<Q", 2) + b"{}"),
    "deep header": _write(_WEIGHTS, struct.pack("<Q", 100_000) + b"[" * 100_000),
    "tensor beyond the end": _first_tensor(data_offsets=[0, 10**12]),
    "tensor before the start": _first_tensor(data_offsets=[-8, 8]),
    "tensor of another size": _first_tensor(data_offsets=[0, 4]),
    "tensor of a negative shape": _first_tensor(shape=[-1, 64]),
    "tensor of a huge shape": _first_tensor(shape=[2**40, 2**40]),
    "tensor of another shape": _first_tensor(shape=[64, 258]),
    "tensor of an unknown type": _first_tensor(dtype="F99"),
    "missing tensor": _header(_drop_a_tensor),
    "tensor too many": _header(_add_a_tensor),
    "no config": _remove("config.json"),
    "cut config": _write("config.json", b'{"model_type": '),
    "empty config": _write("config.json", b""),
    "binary config": _write("config.json", b"\xff\xfe\0"),
    "config is a list": _write("config.json", b"[]"),
    "config is null": _write("config.json", b"null"),
    "config is a folder": _replace_config_by_a_folder,
    "unknown architecture": _configure(model_type="nonesuch"),
    "no architecture": _configure(model_type=...),
    "architecture is a path": _configure(model_type="../../llama"),
    "architecture of another file": _configure(model_file="../model.py"),
    "wider config": _configure(hidden_size=128),
    "no width": _configure(hidden_size=...),
    "width is a word": _configure(hidden_size="wide"),
    "width of 0": _configure(hidden_size=0),
    "more layers than weights": _configure(num_hidden_layers=3),
    "no layers": _configure(num_hidden_layers=0),
    "no heads": _configure(num_attention_heads=0),
    "no vocabulary": _configure(vocab_size=0),
    "vocabulary of 10^12": _configure(vocab_size=10**12),
    "context is a word": _configure(max_position_embeddings="long"),
    "end token is a word": _configure(eos_token_id="stop"),
    "cut tokenizer": _cut("tokenizer.json", 100),
    "no tokenizer": _remove("tokenizer.json", "tokenizer_config.json"),
    "empty tokenizer": _write("tokenizer.json", b"{}"),
    "binary tokenizer": _write("tokenizer.json", b"\xff\0"),
    "tokenizer is a list": _write("tokenizer.json", b"[]"),
    "broken tokenizer config": _write("tokenizer_config.json", b"{"),
    "tokenizer config is a list": _write("tokenizer_config.json", b"[]"),
    "context of 0": _configure(max_position_embeddings=0),
    "negative context": _configure(max_position_embeddings=-5),
}
_TEMPLATE = "{{ messages[0].content }}"


@pytest.mark.parametrize(
    "damage",
    [pytest.param(damage, id=name) for name, damage in _DAMAGES.items()],
)
def test_a_damaged_model_fails_with_its_path_and_the_engine_serves_others(
    engine: RunningEngine, tiny_model: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    damage(folder)
    broken = ModelId(str(folder))
    beside = engine.submit()
    failed = engine.load(folder, broken)
    assert isinstance(failed, ModelFailed)
    assert failed.model == broken
    assert str(folder) in failed.message
    assert engine.answer(beside).token_ids
    assert engine.generate().token_ids
    assert engine.refusal(engine.submit(model=broken)).code == "model_unavailable"


@pytest.mark.parametrize(
    ("template", "code", "words"),
    [
        (
            "{{ raise_exception('roles must alternate') }}",
            "invalid_request",
            "roles must alternate",
        ),
        ("{{ messages[0].mood.name }}", "invalid_request", "mood"),
        ("{{ ''.__class__.__mro__ }}", "invalid_request", "unsafe"),
        ("{{ 1 / 0 }}", "request_failed", "ZeroDivisionError"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "request_failed", "RecursionError"),
        ("{% include 'another' %}", "request_failed", "TypeError"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "request_failed", "Range too big"),
    ],
)
def test_a_template_that_fails_fails_its_request_and_no_other(
    engine: RunningEngine, tiny_model: Path, tmp_path: Path, template: str, code: str, words: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    _configure("tokenizer_config.json", chat_template=template)(folder)
    broken = ModelId(str(folder))
    assert isinstance(engine.load(folder, broken), ModelLoaded)
    chat = [{"role": "user", "content": "Hello"}]
    beside = engine.submit()
    refused = engine.refusal(engine.submit(None, messages=chat, model=broken))
    assert refused.code == code
    assert refused.param == "messages"
    assert words in refused.message
    assert engine.answer(beside).token_ids
    assert engine.generate(model=broken).token_ids == engine.generate().token_ids


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for %}", "the chat template has an error in line 1"),
        ("{% generation %}{{ messages }}", "the chat template has an error in line 1"),
        (5, "neither a string nor a list of named templates, but 5"),
        ([_TEMPLATE], "is a list, but not of objects with a name and a template each"),
        ([{"name": "default"}], "is a list, but not of objects with a name and a template each"),
        ([{"name": 1, "template": _TEMPLATE}], "has a name that is not a string: 1"),
        ([{"name": "default", "template": 5}], "its chat template default is not a string, but 5"),
        ({"rag": _TEMPLATE}, "of its chat templates (rag) none is named default"),
    ],
)
def test_a_template_that_no_request_could_use_is_told_and_prompts_are_served(
    engine: RunningEngine, tiny_model: Path, tmp_path: Path, template: Any, said: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    _configure("tokenizer_config.json", chat_template=template)(folder)
    broken = ModelId(str(folder))
    loaded = engine.load(folder, broken)
    assert isinstance(loaded, ModelLoaded)
    (warning,) = loaded.warnings
    assert said in warning and warning.endswith("; messages are rejected, prompts are served")
    chat = [{"role": "user", "content": "Hello"}]
    refused = engine.refusal(engine.submit(None, messages=chat, model=broken))
    assert (refused.code, refused.param) == ("invalid_request", "messages")
    assert said in refused.message and refused.message.endswith("; use prompt")
    assert engine.generate(model=broken).token_ids == engine.generate().token_ids


def test_a_repaired_model_loads(engine: RunningEngine, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / _WEIGHTS).unlink()
    repaired = ModelId("repaired")
    assert isinstance(engine.load(folder, repaired), ModelFailed)
    shutil.copy(tiny_model / "model.safetensors", folder)
    assert isinstance(engine.load(folder, repaired), ModelLoaded)
    assert engine.generate(model=repaired).token_ids == engine.generate().token_ids


def test_code_of_a_model_that_wants_to_end_the_process_ends_its_load_alone(
    engine: RunningEngine, tiny_model: Path, tmp_path: Path
) -> None:
    """As mlx-lm's own does where a package is missing that a model needs."""
    make_crashing_model(tmp_path / "model", tiny_model, at="load", by="sys.exit")
    beside = engine.submit()
    failed = engine.load(tmp_path / "model", ModelId("exits"), trust_remote_code=True)
    assert isinstance(failed, ModelFailed)
    assert failed.message == (
        f"{tmp_path / 'model'}: its code ended with SystemExit (1), after ModuleNotFoundError: "
        "No module named 'a_package_that_is_missing'"
    )
    assert engine.answer(beside).token_ids


def test_a_tokenizer_that_never_comes_ends_its_load_alone(
    engine: RunningEngine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    load_tokenizer = model_tokenizer.load_tokenizer

    def load_late(*arguments: Any) -> Any:
        released.wait()
        return load_tokenizer(*arguments)

    monkeypatch.setattr(model, "load_tokenizer", load_late)
    monkeypatch.setattr(engine_models, "_LOADING_TIMEOUT_S", 0.2)
    try:
        failed = engine.load(tiny_model, ModelId("late"))
        assert isinstance(failed, ModelFailed)
        assert "no progress" in failed.message
        assert engine.generate().token_ids
    finally:
        released.set()
