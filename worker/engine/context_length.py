"""The context length of a model, in tokens, from its files.

Sources, in this order: `config.json`, extended by YaRN; the tokenizer's `model_max_length`; the
default of transformers for the model type, because files written by transformers omit defaults. A
model whose cache does not grow with the sequence has no limit of its own. If no source has a value,
one is assumed, with a warning.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from shared.errors import ModelError

ASSUMED_TOKENS = 4096
UNBOUNDED_TOKENS = 2**20
"""Allowed if the model has no limit: requests still need one."""
_MAX_TOKENIZER_TOKENS = 100_000_000
"""Tokenizers without a limit have 10^30 or similar values."""
_MAX_YARN_FACTOR = 10_000
_KEYS = (
    "max_position_embeddings",
    "max_seq_len",
    "max_sequence_length",
    "max_seq_length",
    "seq_length",
    "n_positions",
    "n_ctx",
    "model_max_length",
    "max_context_length",
    "block_size",
)
"""Keys of the context length in configs; they differ between families, the first one counts."""
_SECTIONS = ("text_config", "llm_config", "language_config")

ContextOrigin = Literal["config", "tokenizer", "model type", "unbounded", "assumed"]


@dataclass(frozen=True, slots=True)
class ContextLength:
    """The context of a model, in tokens, and the source of the value."""

    tokens: int
    origin: ContextOrigin

    def limited(self, max_context_tokens: int | None) -> int:
        """Apply the setting `max_context_tokens`: it can lower a value from the model's files, and
        replaces an assumed one."""
        if max_context_tokens is None:
            return self.tokens
        if self.origin in ("unbounded", "assumed"):
            return max_context_tokens
        return min(max_context_tokens, self.tokens)

    def warning(self, max_context_tokens: int | None) -> str | None:
        """Return a warning for operators if the value was assumed and the setting is absent."""
        if max_context_tokens is not None:
            return None
        match self.origin:
            case "assumed":
                return (
                    f"neither config.json nor the tokenizer specifies the model's context: "
                    f"{self.tokens} tokens are assumed; set max_context_tokens of this model"
                )
            case "unbounded":
                return (
                    f"config.json specifies no context, and the model's state does not grow with "
                    f"the sequence: {self.tokens} tokens are allowed; the model may have been "
                    "trained on fewer: set max_context_tokens of this model"
                )
            case _:
                return None


def find_context_length(
    config: Mapping[str, Any], tokenizer_limit: Any, *, grows: bool
) -> ContextLength:
    """Return the context length of a model.

    Args:
        config: the content of `config.json`.
        tokenizer_limit: the tokenizer's `model_max_length`, of any type.
        grows: whether the model's cache grows with the sequence.

    Raises:
        ModelError: the context in the config is not a positive whole number.
    """
    for section in _sections(config):
        for key in _KEYS:
            if section.get(key) is not None:
                tokens = _token_count(key, section[key])
                return ContextLength(_stretched(tokens, section), "config")
    if isinstance(tokenizer_limit, int) and 1 < tokenizer_limit <= _MAX_TOKENIZER_TOKENS:
        return ContextLength(tokenizer_limit, "tokenizer")
    if (implied := _implied_by_type(config)) is not None:
        return ContextLength(implied, "model type")
    if not grows:
        return ContextLength(UNBOUNDED_TOKENS, "unbounded")
    return ContextLength(ASSUMED_TOKENS, "assumed")


def _sections(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the config, and its sections of the language model."""
    yield config
    for name in _SECTIONS:
        if isinstance(section := config.get(name), dict):
            yield section


def _token_count(key: str, value: Any) -> int:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value < 1 or value != value // 1:
        raise ModelError(f"config.json: {key} is {value!r:.80}, which is not a number of tokens")
    return int(value)


def _stretched(tokens: int, section: Mapping[str, Any]) -> int:
    """Extend the context by YaRN: it is `factor` times the trained context. Other kinds of scaling
    (Llama 3, LongRoPE, linear) are included in the config's number already."""
    for name in ("rope_scaling", "rope_parameters"):
        match section.get(name) or {}:
            case {
                "factor": int() | float() as factor,
                "original_max_position_embeddings": int(original),
            } as scaling if (
                "yarn" in (scaling.get("rope_type"), scaling.get("type"))
                and 1 <= factor <= _MAX_YARN_FACTOR
            ):
                return max(tokens, int(factor * original))
    return tokens


def _implied_by_type(config: Mapping[str, Any]) -> int | None:
    """Return the default of transformers for the model type, if any."""
    for section in reversed(list(_sections(config))):
        try:
            default = CONFIG_MAPPING[section["model_type"]]()
        except Exception:  # an unknown type, or a config class with required arguments
            continue
        text = default.get_text_config()
        tokens = getattr(text, "max_position_embeddings", None)
        if isinstance(tokens, int) and tokens > 1:
            return tokens
    return None
