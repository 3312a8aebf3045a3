"""The context of a model, as its files say; never assumed without a word."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes

from shared.errors import ModelError
from shared.ids import ModelId
from tests.models import CONTEXT_TOKENS
from worker.engine.context_length import ASSUMED_TOKENS, UNBOUNDED_TOKENS, find_context_length
from worker.engine.model import LoadedModel, load_model
from worker.link.orders import LoadModel

_NO_LIMIT = int(1e30)
"""What tokenizers without a limit carry."""
_MAMBA = {
    "model_type": "mamba", "vocab_size": 258, "hidden_size": 32, "intermediate_size": 64,
    "state_size": 8, "num_hidden_layers": 2, "conv_kernel": 4, "use_bias": False,
    "use_conv_bias": True, "time_step_rank": 2, "eos_token_id": 257,
}  # fmt: skip


def _tokens(config: dict[str, Any], tokenizer: Any = _NO_LIMIT, *, grows: bool = True) -> int:
    return find_context_length(config, tokenizer, grows=grows).tokens


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"model_type": "llama", "max_position_embeddings": 8192}, 8192),
        ({"model_type": "dbrx", "max_seq_len": 32768}, 32768),
        ({"model_type": "olmo", "max_sequence_length": 2048}, 2048),
        ({"model_type": "gptj", "n_positions": 2048}, 2048),
        ({"model_type": "kimi_linear", "model_max_length": 1_048_576}, 1_048_576),
        ({"model_type": "openelm", "max_context_length": 2048}, 2048),
        ({"model_type": "lille-130m", "block_size": 512}, 512),
        ({"model_type": "qwen3_vl", "text_config": {"max_position_embeddings": 262_144}}, 262_144),
        ({"model_type": "x", "max_position_embeddings": None, "n_ctx": 4096.0}, 4096),
    ],
)
def test_it_is_what_the_config_says_under_each_familys_name(
    config: dict[str, Any], tokens: int
) -> None:
    found = find_context_length(config, 512, grows=True)
    assert (found.tokens, found.origin) == (tokens, "config")


@pytest.mark.parametrize(
    ("scaling", "tokens"),
    [
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131_072),
        ({"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 4096}, 32768),
        ({"rope_type": "yarn", "factor": 4.0}, 32768),
        ({"type": "yarn", "factor": 1e300, "original_max_position_embeddings": 4096}, 32768),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 32768),
        ({"type": "linear", "factor": 4.0}, 32768),
        ({"type": "longrope", "long_factor": [1.0]}, 32768),
    ],
)
def test_yarn_stretches_it_and_other_scaling_is_in_the_number_already(
    scaling: dict[str, Any], tokens: int
) -> None:
    config = {"model_type": "qwen2", "max_position_embeddings": 32768}
    assert _tokens({**config, "rope_scaling": scaling}) == tokens
    assert _tokens({**config, "rope_parameters": scaling}) == tokens


def test_the_original_configs_of_gemma_3_leave_it_to_what_transformers_knows() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "sliding_window": 1024}
    config = {"model_type": "gemma3", "text_config": text}
    found = find_context_length(config, _NO_LIMIT, grows=True)
    assert (found.tokens, found.origin) == (131_072, "model type")
    assert found.warning(None) is None


def test_a_tokenizer_says_it_where_the_config_does_not_and_unless_it_has_no_limit() -> None:
    config = {"model_type": "nonesuch"}
    assert _tokens(config, 2048) == 2048
    for absurd in (_NO_LIMIT, 0, 1, -1, "long", None, 2048.5):
        assert _tokens(config, absurd) == ASSUMED_TOKENS


@pytest.mark.parametrize("value", [0, -5, "long", 2048.5, True, [2048]])
def test_a_context_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ModelError, match=r"max_position_embeddings is .*, which is not a number"):
        _tokens({"model_type": "llama", "max_position_embeddings": value})


def test_what_is_assumed_is_told_and_a_setting_stands_for_it() -> None:
    found = find_context_length({"model_type": "nonesuch"}, _NO_LIMIT, grows=True)
    warning = found.warning(None)
    assert warning is not None and "4096 tokens are assumed" in warning
    assert "set max_context_tokens" in warning
    assert found.warning(16_384) is None
    assert (found.limited(None), found.limited(16_384), found.limited(100)) == (4096, 16_384, 100)


# On real folders.


def _configured(folder: Path, name: str, **fields: Any) -> None:
    body = {**json.loads((folder / name).read_text()), **fields}
    (folder / name).write_text(json.dumps({k: v for k, v in body.items() if v is not ...}))


def _load(folder: Path, **fields: Any) -> LoadedModel:
    return load_model(LoadModel(ModelId("model"), str(folder), **fields))


def test_a_config_without_it_takes_the_tokenizers_and_then_that_of_the_model_type(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    _configured(folder, "config.json", max_position_embeddings=...)
    assert _load(folder).max_context_tokens == CONTEXT_TOKENS
    _configured(folder, "tokenizer_config.json", model_max_length=_NO_LIMIT)
    loaded = _load(folder)
    assert (loaded.max_context_tokens, loaded.warnings) == (2048, ())


def test_a_recurrent_model_has_no_bound_of_its_own_and_says_so(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "mamba"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / name, folder)
    (folder / "config.json").write_text(json.dumps(_MAMBA))
    _configured(folder, "tokenizer_config.json", model_max_length=_NO_LIMIT)
    model_class, arguments = _get_classes(_MAMBA)
    network = model_class(arguments.from_dict(_MAMBA))
    parameters: Any = tree_flatten(network.parameters())
    mx.save_safetensors(str(folder / "model.safetensors"), dict(parameters))
    loaded = _load(folder)
    assert loaded.max_context_tokens == UNBOUNDED_TOKENS
    (warning,) = loaded.warnings
    assert f"{UNBOUNDED_TOKENS} tokens are allowed" in warning
    bounded = _load(folder, max_context_tokens=2048)
    assert (bounded.max_context_tokens, bounded.warnings) == (2048, ())
