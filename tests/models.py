"""Tiny random-weights models, made by the tests, of mlx-lm's own model classes."""

import json
from pathlib import Path
from typing import cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

CONTEXT_TOKENS = 1024
END_TOKEN = "<|im_end|>"
_SPREAD = 3.0
_START_TOKEN = "<|im_start|>"
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_model(
    folder: Path,
    *,
    seed: int = 7,
    context_tokens: int = CONTEXT_TOKENS,
    intermediate_size: int = 128,
    kv_heads: int = 2,
    head_dim: int = 16,
    endless: bool = False,
) -> Path:
    """Write a model folder: two layers, float32, one token a byte. A large `intermediate_size`
    makes it heavy: 1536 bytes each. A token's keys and values take 16 bytes for each number of
    `kv_heads` x `head_dim`. An `endless` one never says its end token where it is greedy."""
    folder.mkdir(parents=True)
    vocabulary = write_tokenizer(folder, context_tokens)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": 2,
        "num_attention_heads": max(4, kv_heads),
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": vocabulary,
        "max_position_embeddings": context_tokens,
        "tie_word_embeddings": True,
        "eos_token_id": vocabulary - 1,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    mx.random.seed(seed)
    network = llama.Model(llama.ModelArgs.from_dict(config))
    # Wider than the default, so that answers vary instead of repeating one token.
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(network.parameters()))
    weights = {name: array if "norm" in name else array * _SPREAD for name, array in parameters}
    if endless:  # its logit is always 0, that of the best token is not
        weights["model.embed_tokens.weight"][vocabulary - 1] = 0
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    return folder


def write_tokenizer(folder: Path, context_tokens: int) -> int:
    """A byte-level tokenizer without merges; returns the size of its vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_START_TOKEN, END_TOKEN])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": END_TOKEN,
                "chat_template": _CHAT_TEMPLATE,
                "clean_up_tokenization_spaces": False,
                "model_max_length": context_tokens,
            }
        )
    )
    return tokenizer.get_vocab_size()
