"""What a model's files say about prompts, lengths and kind, and what calls it rejects."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.errors import InvalidRequest
from tests.worker.engine.embedding.conftest import LoadCase, WriteCase
from tests.worker.engine.embedding.nearness import assert_computes, assert_vectors, vectors_of
from tests.worker.engine.embedding.random_models import PROMPTS, make_tokenizer, write_json
from tests.worker.engine.embedding.reference_files import reference
from tests.worker.engine.embedding.test_broken_folders import change, remove
from worker.engine.embedding.embedding_tokenizer import TokenizedPair
from worker.engine.embedding.kind import embedding_kind
from worker.engine.embedding.model import load_embedding_model

_PROMPTS = "config_sentence_transformers.json"
_SETTINGS = "sentence_bert_config.json"


def test_a_prompt_stands_before_the_text(load_case: LoadCase) -> None:
    model = load_case("bert")
    tokenizer = make_tokenizer("bert", 0)
    assert model.tokenize("ab") == tokenizer.encode("ab").ids
    assert model.tokenize("ab", "query") == tokenizer.encode(PROMPTS["query"] + "ab").ids


def test_an_unknown_prompt_is_the_fault_of_the_request(load_case: LoadCase) -> None:
    with pytest.raises(InvalidRequest, match="no prompt 'other'; it has document, query") as caught:
        load_case("bert").tokenize("ab", "other")
    assert caught.value.param == "prompt_name"


def test_the_default_prompt(write_case: WriteCase) -> None:
    folder = write_case("bert-pooling")
    change(_PROMPTS, default_prompt_name="query")(folder)
    model = load_embedding_model(folder)
    assert model.tokenize("ab") == model.tokenize("ab", "query") != model.tokenize("ab", "document")
    assert model.unpooled_tokens() == model.unpooled_tokens("query") > 0


def test_a_model_without_the_file_has_no_prompts(write_case: WriteCase) -> None:
    folder = write_case("bert")
    remove(_PROMPTS)(folder)
    model = load_embedding_model(folder)
    assert model.tokenize("ab") == make_tokenizer("bert", 0).encode("ab").ids
    with pytest.raises(InvalidRequest, match="no prompt 'query'; it has none"):
        model.tokenize("ab", "query")


def test_default_dimensions(write_case: WriteCase) -> None:
    folder = write_case("bert")
    change(_PROMPTS, truncate_dim=8)(folder)
    model = load_embedding_model(folder)
    expected = reference("bert", "vectors")[:, :8]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert model.dimensions == 8
    assert_computes(model, lambda: vectors_of(model), expected)
    assert model.embed([model.tokenize("ab")], dimensions=32).shape == (1, 32)


def test_lower_case(write_case: WriteCase) -> None:
    folder = write_case("bert")
    assert (
        load_embedding_model(folder).tokenize("ABc") != make_tokenizer("bert", 0).encode("abc").ids
    )
    change(_SETTINGS, do_lower_case=True)(folder)
    assert (
        load_embedding_model(folder).tokenize("ABc") == make_tokenizer("bert", 0).encode("abc").ids
    )


@pytest.mark.parametrize(
    ("name", "max_seq_length", "tokenizer_limit", "expected"),
    [
        ("bert", 120, 100, 120),
        ("bert", None, 100, 100),
        ("bert", None, 10**30, 128),
        ("bert", 512, 10**30, 128),
        ("xlm-roberta", None, 512, 128),
        ("modernbert", None, 10**30, 256),
        ("qwen3", None, 10**30, 256),
    ],
)
def test_max_tokens(
    name: str,
    max_seq_length: int | None,
    tokenizer_limit: int,
    expected: int,
    write_case: WriteCase,
) -> None:
    folder = write_case(name)
    write_json(folder / _SETTINGS, {"max_seq_length": max_seq_length})
    change("tokenizer_config.json", model_max_length=tokenizer_limit)(folder)
    assert load_embedding_model(folder).max_tokens == expected


def test_tokens_are_not_truncated(load_case: LoadCase) -> None:
    model = load_case("bert")
    assert len(model.tokenize("a" * 1000)) == 1002


def test_token_types_of_pairs(load_case: LoadCase) -> None:
    types = load_case("bert-classifier").tokenize_pair("abc", "de")
    assert types.ids == make_tokenizer("bert", 0).encode("abc", "de").ids
    assert types.second_from == 5
    for name in ("xlm-roberta-classifier", "modernbert-classifier"):
        pair = load_case(name).tokenize_pair("abc", "de")
        assert pair.second_from == len(pair.ids)


def test_token_types_matter(load_case: LoadCase) -> None:
    model = load_case("bert-classifier")
    pair = model.tokenize_pair("abc", "de")
    scores = np.array(model.classify([pair, TokenizedPair(pair.ids, len(pair.ids))]))
    assert abs(scores[0, 0] - scores[1, 0]) > 0.01


@pytest.mark.parametrize(
    ("name", "assumed"),
    [
        ("bert", "it has no modules.json, which would tell how to pool: the mean of all states is"),
        ("qwen3", "it has no modules.json, which would tell how to pool: the last token's state"),
    ],
)
def test_what_is_assumed_without_modules(name: str, assumed: str, write_case: WriteCase) -> None:
    folder = write_case(name)
    assert load_embedding_model(folder).warnings == ()
    remove("modules.json")(folder)
    model = load_embedding_model(folder)
    assert [warning[: len(assumed)] for warning in model.warnings] == [assumed]
    assert_vectors(model, name)


def test_a_network_in_a_folder_of_its_own(write_case: WriteCase) -> None:
    """As in folders of sentence-transformers before version 1."""
    folder = write_case("bert")
    inner = folder / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).rename(inner / name)
    modules = [("Transformer", "0_Transformer"), ("Pooling", "1_Pooling"), ("Normalize", "2")]
    entries = [{"type": f"sentence_transformers.models.{k}", "path": p} for k, p in modules]
    write_json(folder / "modules.json", entries)
    assert_vectors(load_embedding_model(folder), "bert")


def test_code_of_the_folder_is_not_run(write_case: WriteCase) -> None:
    folder = write_case("bert")
    code = "raise SystemExit('ran')"
    (folder / "evil.py").write_text(code)
    change("config.json", auto_map={"AutoModel": "evil.Model", "AutoConfig": "evil.Config"})(folder)
    change("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", "evil.T"]})(folder)
    assert_vectors(load_embedding_model(folder), "bert")


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], "the batch has no rows"),
        ([[5], []], "a row has 0 tokens; 1 to 128 are possible"),
        ([[5], [5] * 129], "a row has 129 tokens; 1 to 128 are possible"),
        ([[5], [48]], "a token is outside the vocabulary of 48 tokens"),
        ([[5], [-1]], "a token is outside the vocabulary of 48 tokens"),
    ],
)
@pytest.mark.parametrize("name", ["bert", "xlm-roberta"])
def test_rows_that_cannot_be_embedded(
    name: str, rows: Sequence[Sequence[int]], problem: str, load_case: LoadCase
) -> None:
    with pytest.raises(ValueError, match=problem):
        load_case(name).embed(rows)


@pytest.mark.parametrize("name", ["bert", "xlm-roberta"])
def test_the_longest_row(name: str, load_case: LoadCase) -> None:
    vectors = np.array(load_case(name).embed([[5] * 128, [5]]))
    assert np.isfinite(vectors).all()


def test_classifiers_do_not_embed_and_others_do_not_score(load_case: LoadCase) -> None:
    with pytest.raises(ValueError, match="a classifier does not embed"):
        load_case("bert-classifier").embed([[5]])
    with pytest.raises(ValueError, match="only a classifier classifies"):
        load_case("bert").classify([TokenizedPair([5], 1)])


@pytest.mark.parametrize(
    ("config", "files", "expected"),
    [
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, [], None),
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, ["modules.json"],
         "embedding"),
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, [_PROMPTS], "embedding"),
        ({"model_type": "qwen3", "architectures": ["Qwen3Model"]}, [], "embedding"),
        ({"model_type": "qwen3"}, [], None),
        ({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}, [], None),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, [], "embedding"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, [], "embedding"),
        ({"model_type": "modernbert"}, [], "embedding"),
        ({"model_type": "bert", "architectures": ["BertForSequenceClassification"]}, [],
         "classification"),
        ({"model_type": "bert", "architectures": ["BertForSequenceClassification"]},
         ["modules.json"], "classification"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, [], None),
        ({"model_type": "mpnet", "architectures": ["MPNetModel"]}, ["modules.json"], "embedding"),
        ({"architectures": 3}, [], None),
        ({"model_type": ["bert"]}, [], None),
        ({}, [], None),
    ],
)  # fmt: skip
def test_kinds(
    config: dict[str, Any], files: list[str], expected: str | None, tmp_path: Path
) -> None:
    for name in files:
        write_json(tmp_path / name, {})
    assert embedding_kind(tmp_path, config) == expected
