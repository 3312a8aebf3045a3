"""Where the files of a model are found, and what is said where they are not."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.errors import ModelError
from shared.ids import ModelId
from shared.settings.base import DEMO_MODEL
from shared.settings.models import ModelSettings
from tests.worker.models.model_folders import write_adapter, write_model
from worker.models import demo_model
from worker.models.sources import ModelAndAdapterFolders, find_files, local_folder

_ALIAS = ModelId("alias")


def _found(path: str, model: ModelId = _ALIAS) -> Path | None:
    return local_folder(model, ModelSettings(path=path))


def _refusal(path: str, model: ModelId = _ALIAS) -> str:
    with pytest.raises(ModelError) as caught:
        _found(path, model)
    return caught.value.message


# Folders.


def test_a_folder_is_found_absolute_relative_and_below_the_home(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    monkeypatch.setenv("HOME", str(model.parent))
    assert _found(str(model)) == model
    assert _found("model") == Path("model")
    assert _found("./model") == Path("model")
    assert _found("~/model") == model


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    message = _refusal(str(tmp_path))
    assert "alias" in message and str(tmp_path) in message and "config.json" in message


def test_a_file_is_no_model(model: Path) -> None:
    path = str(model / "config.json")
    assert f"{path} is not a folder" in _refusal(path)


# The hub.


@pytest.mark.parametrize("path", ["owner/name", "mlx-community/Qwen2.5-0.5B_4bit"])
def test_a_hub_id_is_to_be_fetched(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _found(path) is None
    assert _found(path, ModelId(path)) is None


def test_a_folder_that_is_called_like_a_hub_id_is_taken_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "owner" / "name")
    monkeypatch.chdir(tmp_path)
    assert _found("owner/name") == Path("owner/name")


def test_a_file_that_is_called_like_a_hub_id_is_not_fetched_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "name").write_text("weights")
    monkeypatch.chdir(tmp_path)
    assert "owner/name is not a folder" in _refusal("owner/name")


# Neither.


@pytest.mark.parametrize(
    "path",
    [
        "/no/such",
        "./no/such",
        "../such",
        "~/such",
        "name",
        "a/b/c",
        "owner/na me",
        "owner--x/name",
        "https://huggingface.co/owner/name",
        "~nobody-of-that-name/model",
        "n" * 256,
        "/" + "n" * 300,
    ],
)
def test_what_is_neither_a_folder_nor_a_hub_id_is_refused_by_its_name(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    message = _refusal(path)
    assert message.startswith("model alias: ") and path[:30] in message


@given(st.text(min_size=1) | st.from_regex(r"\A[~./a-z\0-]{1,20}\Z"))
@example("a\0b")
@example("~")
def test_any_path_is_a_model_folder_a_hub_id_or_refused(path: str) -> None:
    try:
        folder = _found(path)
    except ModelError as error:
        assert "alias" in error.message
    else:
        assert "/" in path if folder is None else (folder / "config.json").is_file()


# The demo model.


def test_the_demo_model_is_where_it_was_fetched_to(demo_folder: Path) -> None:
    assert _found("demo", DEMO_MODEL) == demo_folder


def test_without_the_demo_model_it_is_said_how_to_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_model, "folder", lambda: tmp_path / "demo")
    assert "worker --fetch demo" in _refusal("demo", DEMO_MODEL)


def test_demo_may_be_an_alias_of_another_model(model: Path) -> None:
    assert _found(str(model), DEMO_MODEL) == model
    assert _found("owner/name", DEMO_MODEL) is None


def test_any_alias_may_be_of_the_demo_model_unless_a_folder_has_its_name(
    demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _found("demo") == demo_folder
    (tmp_path / "demo").mkdir()
    assert "demo has no config.json" in _refusal("demo")
    (tmp_path / "demo" / "config.json").write_text("{}")
    assert _found("demo") == Path("demo")


# Adapters.


async def _files(
    path: str, fetched: dict[str, Path] | None = None, **source: Any
) -> ModelAndAdapterFolders:
    async def fetch(repo: str, revision: str | None) -> Path:
        return (fetched or {})[repo]

    return await find_files(_ALIAS, ModelSettings(path=path, **source), fetch)


def _is_same(folder: Path, other: Path) -> bool:
    return folder.samefile(other)


async def _adapter_refusal(path: Path, **source: Any) -> str:
    with pytest.raises(ModelError) as caught:
        await _files(str(path), **source)
    return caught.value.message


@pytest.mark.anyio
async def test_a_model_has_the_adapter_that_is_named_from_here_or_from_the_hub(
    model: Path, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "lora")
    fetched = {"owner/lora": adapter, "owner/model": model}
    assert await _files(str(model)) == ModelAndAdapterFolders(model)
    assert await _files(str(model), adapter=str(adapter)) == ModelAndAdapterFolders(model, adapter)
    assert await _files("owner/model", fetched, adapter="owner/lora") == ModelAndAdapterFolders(
        model, adapter
    )


@pytest.mark.anyio
async def test_an_adapter_alone_stands_for_its_base_model_with_it(
    model: Path, tmp_path: Path
) -> None:
    for number, base in enumerate([str(model), "../model", "model", "owner/model"]):
        adapter = write_adapter(tmp_path / f"lora-{number}", model=base)
        found = await _files(str(adapter), {"owner/model": model})
        assert _is_same(found.folder, model) and found.adapter == adapter
    adapter = tmp_path / "lora-0"
    assert await _files("owner/lora", {"owner/lora": adapter}) == ModelAndAdapterFolders(
        model, adapter
    )


@pytest.mark.anyio
async def test_an_adapter_without_its_base_or_beside_another_says_what_to_set(
    model: Path, tmp_path: Path
) -> None:
    nowhere = write_adapter(tmp_path / "nowhere", model="/no/such/model")
    message = await _adapter_refusal(nowhere)
    assert "its base model /no/such/model is not on this machine" in message
    assert "set `path` to the base model and `adapter` to this folder" in message
    two = write_adapter(tmp_path / "two", model=str(model))
    assert "a model has one adapter at most" in await _adapter_refusal(two, adapter=str(nowhere))
    missing = await _adapter_refusal(model, adapter="/no/such/adapter")
    assert "adapter: /no/such/adapter is neither a folder nor a Hugging Face id" in missing
    assert "adapter_config.json is missing" in await _adapter_refusal(model, adapter=str(model))
