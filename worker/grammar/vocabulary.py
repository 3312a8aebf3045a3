"""A tokenizer as llguidance gets it."""

import uuid
from typing import Any

_CHANGING = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_PRINTABLE = frozenset({*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)})
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_LETTERS = [chr(byte if byte in _PRINTABLE else 256 + _OTHERS.index(byte)) for byte in range(256)]


def without_markers(described: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """A tokenizer, in Hugging Face's form, to which every text is only text; and its highest id.

    - Added tokens are ordinary ones unless they are special: llguidance takes all of them for
      special, and lets none stand in a text; but a string may hold `</tool_call>`.
      Their names stand for their bytes, as those of others do: `｜DSML｜` has no letter of the
      alphabet of byte-level tokenizers.
    - Special ones get names that no text has: where a schema says that `<|im_end|>` comes, as a
      string, llguidance would have the token come, which ends the answer. They are known by id.
    - Nothing is normalised: what a schema says comes as it is, `e` with an accent after it, too.
    """
    nonce = uuid.uuid4().hex
    model = described["model"]
    vocabulary = model.get("vocab") or []
    spell = _byte_level if _is_byte_level(described.get("decoder")) else str
    kept = []
    for token in described["added_tokens"]:
        name = f"<{nonce}:{token['id']}>" if token["special"] else spell(token["content"])
        if isinstance(vocabulary, dict):
            vocabulary.pop(token["content"], None)
            vocabulary[name] = token["id"]
        elif token["special"] and token["id"] < len(vocabulary):
            vocabulary[token["id"]] = [name, *vocabulary[token["id"]][1:]]
        if model.get("unk_token") == token["content"]:
            model["unk_token"] = name
        if token["special"] or not isinstance(vocabulary, dict):
            kept.append({**token, "content": name})
    described["added_tokens"] = kept
    described["normalizer"] = _unchanging(described.get("normalizer"))
    ids = vocabulary.values() if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
    return described, max([*ids, *(token["id"] for token in kept)], default=-1)


def _is_byte_level(decoder: Any) -> bool:
    match decoder:
        case {"type": "Sequence", "decoders": list(inner)}:
            return any(map(_is_byte_level, inner))
        case _:
            return isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"


def _byte_level(text: str) -> str:
    """A text in the alphabet of byte-level tokenizers, which has a printable letter for each byte
    (GPT-2's `bytes_to_unicode`)."""
    return "".join(_LETTERS[byte] for byte in text.encode())


def _unchanging(normalizer: Any) -> Any:
    """A normaliser without the forms of Unicode."""
    match normalizer:
        case {"type": "Sequence", "normalizers": list(inner)}:
            left = [each for each in map(_unchanging, inner) if each is not None]
            return {"type": "Sequence", "normalizers": left} if left else None
        case {"type": kind} if kind in _CHANGING:
            return None
        case _:
            return normalizer
