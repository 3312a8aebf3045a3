"""The tokens that end an answer are those of mlx-lm: of `generation_config.json`, or else of
`config.json`, and the tokenizer's own besides."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load

from shared.errors import ModelError
from shared.ids import ModelId
from tests.worker.engine.running_engine import TINY, running_engine
from worker.engine.model import load_model
from worker.link.facts import ModelLoaded
from worker.link.orders import LoadModel

_OWN = 257
"""The tokenizer's own end token."""


def _folder(tiny_model: Path, folder: Path, config: Any, generation: Any) -> Path:
    """A model whose configs name these end tokens; `...`: none."""
    shutil.copytree(tiny_model, folder)
    body = json.loads((folder / "config.json").read_text())
    del body["eos_token_id"]
    body |= {} if config is ... else {"eos_token_id": config}
    (folder / "config.json").write_text(json.dumps(body))
    if generation is not ...:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    return folder


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (..., ..., {_OWN}),
        (5, ..., {5, _OWN}),
        ([5, 6], ..., {5, 6, _OWN}),
        (5, 7, {7, _OWN}),
        ([5], [7, 8], {7, 8, _OWN}),
        (5, None, {5, _OWN}),
        (..., [8], {8, _OWN}),
    ],
)
def test_those_of_generation_config_count_before_those_of_config(
    tiny_model: Path, tmp_path: Path, config: Any, generation: Any, expected: set[int]
) -> None:
    folder = _folder(tiny_model, tmp_path / "model", config, generation)
    found = load_model(LoadModel(ModelId("model"), str(folder))).end_ids
    _, tokenizer = load(str(folder))
    assert found == tokenizer.eos_token_ids == expected


def test_an_answer_ends_where_generation_config_says(tiny_model: Path, tmp_path: Path) -> None:
    ended = ModelId("ended")
    with running_engine(tiny_model) as engine:
        tokens = engine.generate("Hello", ignore_eos=True).token_ids
        end = next(token for token in tokens[3:] if token not in tokens[:3])
        folder = _folder(tiny_model, tmp_path / "model", _OWN, [end])
        assert isinstance(engine.load(folder, ended), ModelLoaded)
        answer = engine.generate("Hello", model=ended)
        assert answer.finish_reason == "stop"
        assert answer.token_ids == tokens[: tokens.index(end)]
        assert engine.generate("Hello", model=TINY).token_ids != answer.token_ids


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("stop", "eos_token_id is 'stop', which is not a token id"),
        ([5, "x"], "eos_token_id is [5, 'x'], which is not a token id"),
        (5000, "eos_token_id [257, 5000] is outside the vocabulary of 258 tokens"),
    ],
)
def test_what_is_no_token_is_refused(
    tiny_model: Path, tmp_path: Path, named: Any, said: str
) -> None:
    folder = _folder(tiny_model, tmp_path / "model", ..., named)
    with pytest.raises(ModelError) as raised:
        load_model(LoadModel(ModelId("model"), str(folder)))
    assert said in raised.value.message
