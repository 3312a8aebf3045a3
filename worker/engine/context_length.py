"""How many tokens a model's context has, as its files say.

In this order: `config.json`, stretched where YaRN stretches it; the tokenizer's
`model_max_length`; what transformers takes where a config of this model type is silent, as files
that transformers wrote name only what differs from that. A model whose cache does not grow with
the text has no bound of its own. Where nothing says it, a value is assumed, and a warning tells.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from shared.errors import ModelError

ASSUMED_TOKENS = 4096
UNBOUNDED_TOKENS = 2**20
"""Allowed where the model has no bound: requests still need one."""
_MOST_TOKENIZER_TOKENS = 100_000_000
"""Tokenizers without a limit carry 10^30, and some other absurd numbers."""
_MOST_YARN_FACTOR = 10_000
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
"""What configs call it, as families name it: the first that is there counts."""
_SECTIONS = ("text_config", "llm_config", "language_config")

ContextOrigin = Literal["config", "tokenizer", "model type", "unbounded", "assumed"]


@dataclass(frozen=True, slots=True)
class ContextLength:
    """The context of a model, in tokens, and where that is from."""

    tokens: int
    origin: ContextOrigin

    def limited(self, max_context_tokens: int | None) -> int:
        """The context as the setting has it: it lowers what the model's files say, and replaces
        what they do not say."""
        if max_context_tokens is None:
            return self.tokens
        if self.origin in ("unbounded", "assumed"):
            return max_context_tokens
        return min(max_context_tokens, self.tokens)

    def warning(self, max_context_tokens: int | None) -> str | None:
        """A sentence for operators where a number was assumed and none was set."""
        if max_context_tokens is not None:
            return None
        match self.origin:
            case "assumed":
                return (
                    f"neither config.json nor the tokenizer names the model's context: "
                    f"{self.tokens} tokens are assumed; set max_context_tokens of this model"
                )
            case "unbounded":
                return (
                    f"config.json names no context, and the model's state does not grow with the "
                    f"text: {self.tokens} tokens are allowed; what it was trained for may be less: "
                    "set max_context_tokens of this model"
                )
            case _:
                return None


def find_context_length(
    config: Mapping[str, Any], tokenizer_limit: Any, *, grows: bool
) -> ContextLength:
    """The context of a model.

    Args:
        config: of `config.json`.
        tokenizer_limit: the tokenizer's `model_max_length`, whatever that is.
        grows: whether the model's cache grows with the text.

    Raises:
        ModelError: the config names a context that is none.
    """
    for section in _sections(config):
        for key in _KEYS:
            if section.get(key) is not None:
                tokens = _token_count(key, section[key])
                return ContextLength(_stretched(tokens, section), "config")
    if isinstance(tokenizer_limit, int) and 1 < tokenizer_limit <= _MOST_TOKENIZER_TOKENS:
        return ContextLength(tokenizer_limit, "tokenizer")
    if (implied := _implied_by_type(config)) is not None:
        return ContextLength(implied, "model type")
    if not grows:
        return ContextLength(UNBOUNDED_TOKENS, "unbounded")
    return ContextLength(ASSUMED_TOKENS, "assumed")


def _sections(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The config, and those in it that are about text."""
    yield config
    for name in _SECTIONS:
        if isinstance(section := config.get(name), dict):
            yield section


def _token_count(key: str, value: Any) -> int:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value < 1 or value != value // 1:
        raise ModelError(f"config.json: {key} is {value!r:.80}, which is no number of tokens")
    return int(value)


def _stretched(tokens: int, section: Mapping[str, Any]) -> int:
    """With YaRN the context is `factor` times what the model was trained with. Other kinds of
    scaling are in the number already (Llama 3, LongRoPE, linear)."""
    for name in ("rope_scaling", "rope_parameters"):
        match section.get(name) or {}:
            case {
                "factor": int() | float() as factor,
                "original_max_position_embeddings": int(original),
            } as scaling if (
                "yarn" in (scaling.get("rope_type"), scaling.get("type"))
                and 1 <= factor <= _MOST_YARN_FACTOR
            ):
                return max(tokens, int(factor * original))
    return tokens


def _implied_by_type(config: Mapping[str, Any]) -> int | None:
    """What transformers assumes for a model type."""
    for section in reversed(list(_sections(config))):
        try:
            default = CONFIG_MAPPING[section["model_type"]]()
        except Exception:  # it knows no such type, or that needs values
            continue
        text = default.get_text_config()
        tokens = getattr(text, "max_position_embeddings", None)
        if isinstance(tokens, int) and tokens > 1:
            return tokens
    return None
