"""Folders of scripted models."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer

from tests.scripted.families import Template

CONTEXT_TOKENS = 131_072
_NETWORK = Path(__file__).with_name("network.py")


def make_scripted_model(
    folder: Path, tokenizer_of: Path, template: Template, scripts: Mapping[str, str]
) -> Path:
    """Write a model folder.

    Args:
        tokenizer_of: a folder whose tokenizer it gets, with the family's tokens added.
        scripts: what it says, by what stands in the last turn. It must be loaded with
            `trust_remote_code`.
    """
    folder.mkdir(parents=True)
    tokenizer = Tokenizer.from_file(str(tokenizer_of / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in template.special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in template.added])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((tokenizer_of / "tokenizer_config.json").read_text())
    config |= {"chat_template": template.text, "model_max_length": CONTEXT_TOKENS}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    end = tokenizer.token_to_id("<|im_end|>")
    ends = [end, *(tokenizer.token_to_id(text) for text in template.ends)]
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "scripted",
                "model_file": "network.py",
                "vocab_size": tokenizer.get_vocab_size(),
                "eos_token_id": ends,
                "max_position_embeddings": CONTEXT_TOKENS,
                "generation_prompts": list(template.generation_prompts),
                "turn_markers": list(template.turn_markers),
            }
        )
    )
    said = [{"when": when, "say": say} for when, say in scripts.items()]
    (folder / "scripts.json").write_text(json.dumps(said))
    shutil.copy(_NETWORK, folder / "network.py")
    mx.save_safetensors(str(folder / "model.safetensors"), {"scale": mx.ones((1,))})
    return folder
