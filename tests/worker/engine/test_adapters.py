"""A model with an adapter says what mlx-lm's own `load(adapter_path=)` makes it say."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.convert import convert
from mlx_lm.generate import generate_step
from mlx_lm.tuner.lora import LoRALinear
from mlx_lm.utils import load

from shared.errors import ModelError
from shared.ids import ModelId
from tests.adapters import make_adapter, make_peft_adapter
from tests.worker.engine.expected_tokens import ExpectedTokens, likeliest
from tests.worker.engine.running_engine import TINY, RunningEngine, running_engine
from worker.engine.model import LoadedModel, load_model
from worker.link.facts import ModelFailed, ModelLoaded
from worker.link.orders import LoadModel

_TOKENS = 24
_TEXT = "Once upon a time"
_TUNED = ModelId("tuned")


@pytest.fixture(scope="module")
def adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapters") / "lora", tiny_model)


@pytest.fixture(scope="module")
def quantised(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantised") / "model"
    convert(str(tiny_model), str(folder), quantize=True, q_group_size=32, q_bits=8)
    return folder


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[RunningEngine]:
    with running_engine(tiny_model) as running:
        yield running


def _solo(model: Path, adapter: Path | None) -> ExpectedTokens:
    """What mlx-lm says, beyond any end token."""
    network, tokenizer = load(str(model), adapter_path=str(adapter) if adapter else None)
    prompt = mx.array(tokenizer.encode(_TEXT))
    return likeliest(generate_step(prompt, network, max_tokens=_TOKENS))


def _said(engine: RunningEngine, model: ModelId = TINY) -> list[int]:
    answer = engine.generate(_TEXT, model=model, max_tokens=_TOKENS, ignore_eos=True)
    return answer.token_ids


def _loaded(model: Path, adapter: Path) -> LoadedModel:
    return load_model(LoadModel(_TUNED, str(model), adapter=str(adapter)))


def _layers_beside(model: LoadedModel) -> int:
    return sum(isinstance(module, LoRALinear) for _, module in model.network.named_modules())


@pytest.mark.parametrize("kind", ["lora", "dora", "full"])
def test_each_kind_of_mlx_lms_changes_the_answer_as_in_mlx_lm(
    engine: RunningEngine, tiny_model: Path, tmp_path: Path, kind: str
) -> None:
    adapter = make_adapter(tmp_path / kind, tiny_model, kind=kind)
    expected = _solo(tiny_model, adapter)
    assert expected != _solo(tiny_model, None)
    assert isinstance(engine.load(tiny_model, _TUNED, adapter=str(adapter)), ModelLoaded)
    assert _said(engine, _TUNED) == expected
    assert _said(engine) == _solo(tiny_model, None)


def test_an_adapter_of_a_quantised_model_stays_beside_its_weights(
    engine: RunningEngine, quantised: Path, tmp_path: Path
) -> None:
    adapter = make_adapter(tmp_path / "lora", quantised)
    assert isinstance(engine.load(quantised, _TUNED, adapter=str(adapter)), ModelLoaded)
    assert _said(engine, _TUNED) == _solo(quantised, adapter) != _solo(quantised, None)
    assert _layers_beside(_loaded(quantised, adapter)) == 6


def test_an_adapter_in_float32_is_fused(tiny_model: Path, adapter: Path) -> None:
    tuned = _loaded(tiny_model, adapter)
    assert _layers_beside(tuned) == 0
    plain = load_model(LoadModel(ModelId("plain"), str(tiny_model)))
    assert tuned.memory_bytes == plain.memory_bytes


def test_an_adapter_that_peft_wrote_says_the_same(
    engine: RunningEngine, tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    peft = make_peft_adapter(tmp_path / "peft", adapter)
    assert isinstance(engine.load(tiny_model, _TUNED, adapter=str(peft)), ModelLoaded)
    assert _said(engine, _TUNED) == _solo(tiny_model, adapter)


def test_rank_stabilised_lora_is_scaled_by_the_root_of_the_rank(
    tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    stable = make_peft_adapter(tmp_path / "stable", adapter, use_rslora=True, lora_alpha=4.0)
    plain = make_peft_adapter(tmp_path / "plain", adapter, lora_alpha=8.0)
    weights = [
        _loaded(tiny_model, each).network.layers[0].self_attn.q_proj.weight
        for each in (stable, plain)
    ]
    assert mx.array_equal(*weights)


def test_what_is_kept_of_texts_is_not_shared_between_adapters_nor_with_the_base_model(
    tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    other = make_adapter(tmp_path / "other", tiny_model, seed=4)
    plain = load_model(LoadModel(ModelId("plain"), str(tiny_model)))
    fingerprints = {plain.fingerprint}
    fingerprints |= {_loaded(tiny_model, each).fingerprint for each in (adapter, other)}
    assert len(fingerprints) == 3
    scaled = tmp_path / "scaled"
    shutil.copytree(adapter, scaled)
    config = json.loads((scaled / "adapter_config.json").read_text())
    config["lora_parameters"]["scale"] = 1.0
    (scaled / "adapter_config.json").write_text(json.dumps(config))
    assert _loaded(tiny_model, scaled).fingerprint not in fingerprints


def _renamed(adapter: Path, name: str) -> None:
    path = adapter / ("adapter_model.safetensors" if "lora_A" in name else "adapters.safetensors")
    weights: Any = mx.load(str(path))
    first = min(weights)
    weights[name] = weights.pop(first)
    mx.eval(weights)
    mx.save_safetensors(str(path), weights)


@pytest.mark.parametrize(
    ("peft", "name", "said"),
    [
        (False, "model.layers.9.mlp.up_proj.lora_a", "model.layers.9.mlp.up_proj.lora_a: not an"),
        (True, "base_model.model.model.layers.9.x.lora_A.weight", "lacks lora_A or lora_B of "),
        (True, "base_model.model.x.lora_A.weight.y", "is not a LoRA matrix"),
    ],
)
def test_an_adapter_that_does_not_fit_is_named_with_its_layer_and_others_are_served(
    engine: RunningEngine,
    tiny_model: Path,
    adapter: Path,
    tmp_path: Path,
    peft: bool,
    name: str,
    said: str,
) -> None:
    folder = tmp_path / "unfit"
    if peft:
        make_peft_adapter(folder, adapter)
    else:
        shutil.copytree(adapter, folder)
    _renamed(folder, name)
    failed = engine.load(tiny_model, _TUNED, adapter=str(folder))
    assert isinstance(failed, ModelFailed)
    assert str(folder) in failed.message and said in failed.message
    assert engine.generate(_TEXT).token_ids


def test_an_adapter_of_a_wider_model_is_refused_with_both_widths(
    tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    peft = make_peft_adapter(tmp_path / "peft", adapter)
    path = peft / "adapter_model.safetensors"
    weights: Any = mx.load(str(path))
    wider = {
        name: mx.zeros((4, 999)) if "q_proj.lora_A" in name else array
        for name, array in weights.items()
    }
    mx.eval(wider)
    mx.save_safetensors(str(path), wider)
    with pytest.raises(ModelError, match=r"self_attn\.q_proj is 64 to 64 wide, the adapter 999"):
        _loaded(tiny_model, peft)


def test_an_adapter_that_is_not_named_is_warned_about(
    engine: RunningEngine, tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    shutil.copytree(adapter, folder / "adapters")
    make_adapter(tmp_path / "beside", folder)
    shutil.copytree(adapter, tmp_path / "of another model")
    loaded = engine.load(folder, _TUNED)
    assert isinstance(loaded, ModelLoaded)
    assert [warning.partition(" contains ")[0] for warning in loaded.warnings] == [
        str(folder / "adapters"),
        str(tmp_path / "beside"),
    ]
    named = engine.load(folder, ModelId("named"), adapter=str(folder / "adapters"))
    assert isinstance(named, ModelLoaded)
    assert [str(tmp_path / "beside") in warning for warning in named.warnings] == [True]
