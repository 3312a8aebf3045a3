"""Small configs of the supported families, as their config.json has them.

`make_references.py` imports this in an environment without MLX.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.worker.engine.embedding.random_models import (
    PROMPTS,
    VOCABULARY,
    make_weights,
    write_json,
    write_modules,
    write_tokenizer,
    write_weights,
)

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
_MEAN = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
_NORMALIZED: list[tuple[str, dict[str, Any] | None]] = [("Pooling", _MEAN), ("Normalize", None)]
_FULL, _SLIDING = "full_attention", "sliding_attention"
_PLAIN_INPUTS = ["input_ids", "attention_mask"]


@dataclass(frozen=True)
class Case:
    """
    Attributes:
        config: the content of config.json.
        template, padding_id, inputs: of the tokenizer.
        modules: after the network, of an embedding model.
        weights: shapes by name, from PyTorch's network; stored with the references.
    """

    name: str
    config: dict[str, Any]
    template: str = "bert"
    padding_id: int = 0
    inputs: list[str] = field(
        default_factory=lambda: ["input_ids", "token_type_ids", "attention_mask"]
    )
    modules: list[tuple[str, dict[str, Any] | None]] = field(default_factory=lambda: _NORMALIZED)

    @property
    def is_classifier(self) -> bool:
        return str(self.config["architectures"][0]).endswith("ForSequenceClassification")

    @property
    def has_types(self) -> bool:
        return "token_type_ids" in self.inputs

    def write(self, folder: Path, shapes: dict[str, Any] | None) -> None:
        """Write the model's folder; without weights if their shapes are not known yet."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "config.json", self.config)
        write_tokenizer(folder, self.template, self.padding_id, self.inputs)
        if shapes is not None:
            around_zero = self.config["model_type"] == "gemma3_text"
            weights = make_weights(shapes, around_zero=around_zero)
            write_weights(folder / "model.safetensors", weights)
        if not self.is_classifier:
            write_modules(folder, self.modules)
            write_json(folder / "sentence_bert_config.json", {"max_seq_length": 120})
            write_json(
                folder / "config_sentence_transformers.json",
                {"prompts": PROMPTS, "default_prompt_name": None},
            )


def _bert(architecture: str, **fields: Any) -> dict[str, Any]:
    return {
        "model_type": "bert", "architectures": [architecture], **_SIZES, "hidden_act": "gelu",
        "max_position_embeddings": 128, "type_vocab_size": 2, "pad_token_id": 0, **fields,
    }  # fmt: skip


def _roberta(architecture: str, **fields: Any) -> dict[str, Any]:
    return {
        "model_type": "xlm-roberta", "architectures": [architecture], **_SIZES,
        "hidden_act": "gelu", "max_position_embeddings": 130, "type_vocab_size": 1,
        "pad_token_id": 1, "layer_norm_eps": 1e-5, **fields,
    }  # fmt: skip


def _distilbert(architecture: str, **fields: Any) -> dict[str, Any]:
    return {
        "model_type": "distilbert", "architectures": [architecture], "vocab_size": VOCABULARY,
        "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "activation": "gelu",
        "max_position_embeddings": 128, "pad_token_id": 0, **fields,
    }  # fmt: skip


def _modern_bert(architecture: str, **fields: Any) -> dict[str, Any]:
    return {
        "model_type": "modernbert", "architectures": [architecture], **_SIZES,
        "num_hidden_layers": 5, "global_attn_every_n_layers": 3, "local_attention": 16,
        "global_rope_theta": 40000.0, "local_rope_theta": 500.0, "hidden_activation": "gelu",
        "max_position_embeddings": 256, "norm_eps": 1e-5, "pad_token_id": 0,
        "bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2, **fields,
    }  # fmt: skip


_QWEN3 = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **_SIZES,
    "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6, "rope_theta": 50000,
    "max_position_embeddings": 256, "tie_word_embeddings": True, "hidden_act": "silu",
    "pad_token_id": 0,
}  # fmt: skip
_GEMMA = {
    "model_type": "gemma3_text", "architectures": ["Gemma3TextModel"], **_SIZES,
    "num_hidden_layers": 4, "num_key_value_heads": 1, "head_dim": 8, "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 8, "rope_theta": 20000.0, "rope_local_base_freq": 300.0,
    "sliding_window": 16, "_sliding_window_pattern": 3, "use_bidirectional_attention": True,
    "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING],
    "max_position_embeddings": 256, "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": 0,
}  # fmt: skip
_TWO_DENSE: list[tuple[str, dict[str, Any] | None]] = [
    ("Pooling", {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}),
    ("Dense", {"in_features": 32, "out_features": 64, "bias": False,
               "activation_function": "torch.nn.modules.linear.Identity"}),
    ("Dense", {"in_features": 64, "out_features": 24, "bias": True,
               "activation_function": "torch.nn.modules.activation.Tanh"}),
    ("Normalize", None),
]  # fmt: skip
_SEVERAL: list[tuple[str, dict[str, Any] | None]] = [
    (
        "Pooling",
        {
            "word_embedding_dimension": 32,
            "pooling_mode_cls_token": True,
            "pooling_mode_max_tokens": True,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_mean_sqrt_len_tokens": True,
            "pooling_mode_weightedmean_tokens": True,
            "pooling_mode_lasttoken": True,
            "include_prompt": False,
        },
    )
]
_LAST: list[tuple[str, dict[str, Any] | None]] = [
    ("Pooling", {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True}),
    ("Normalize", None),
]
_FIVE_LABELS = {"id2label": {str(label): f"label {label}" for label in range(5)}}
_ONE_LABEL = {"id2label": {"0": "LABEL_0"}}
_ROBERTA_TOKENIZER: dict[str, Any] = {
    "template": "roberta",
    "padding_id": 1,
    "inputs": _PLAIN_INPUTS,
}

CASES = {
    case.name: case
    for case in (
        Case("bert", _bert("BertModel")),
        Case("bert-pooling", _bert("BertForMaskedLM", hidden_act="relu"), modules=_SEVERAL),
        Case("distilbert", _distilbert("DistilBertModel"), inputs=_PLAIN_INPUTS),
        Case("xlm-roberta", _roberta("XLMRobertaModel"), **_ROBERTA_TOKENIZER),
        Case(
            "roberta",
            _roberta("RobertaForMaskedLM", model_type="roberta", type_vocab_size=2),
            **_ROBERTA_TOKENIZER,
        ),
        Case("modernbert", _modern_bert("ModernBertModel"), inputs=_PLAIN_INPUTS),
        Case(
            "modernbert-bias",
            _modern_bert(
                "ModernBertForMaskedLM", norm_bias=True, mlp_bias=True, attention_bias=True
            ),
            inputs=_PLAIN_INPUTS,
        ),
        Case("qwen3", _QWEN3, template="end only", inputs=_PLAIN_INPUTS, modules=_LAST),
        Case("gemma3", _GEMMA, inputs=_PLAIN_INPUTS, modules=_TWO_DENSE),
        Case("bert-classifier", _bert("BertForSequenceClassification", **_ONE_LABEL)),
        Case(
            "xlm-roberta-classifier",
            _roberta("XLMRobertaForSequenceClassification", **_FIVE_LABELS),
            **_ROBERTA_TOKENIZER,
        ),
        Case(
            "distilbert-classifier",
            _distilbert("DistilBertForSequenceClassification"),
            inputs=_PLAIN_INPUTS,
        ),
        Case(
            "modernbert-classifier",
            _modern_bert(
                "ModernBertForSequenceClassification", classifier_pooling="mean", **_ONE_LABEL
            ),
            inputs=_PLAIN_INPUTS,
        ),
        Case(
            "modernbert-first-token",
            _modern_bert("ModernBertForSequenceClassification", **_FIVE_LABELS),
            inputs=_PLAIN_INPUTS,
        ),
    )
}  # fmt: skip
