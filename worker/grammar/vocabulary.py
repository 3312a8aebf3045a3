"""Preparation of a tokenizer's JSON for llguidance."""

import uuid
from typing import Any

_NORMALIZATION_FORMS = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_PRINTABLE = frozenset({*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)})
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_LETTERS = [chr(byte if byte in _PRINTABLE else 256 + _OTHERS.index(byte)) for byte in range(256)]


def without_special_text(described: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Change a tokenizer, in Hugging Face's form, so that text never becomes a special token.
    Modifies `described`; returns it and its highest id.

    - Added tokens that are not special become ordinary tokens: llguidance treats every added token
      as special and allows none in text, but a string may contain `</tool_call>`. Their names are
      spelled in the alphabet of byte-level tokenizers, which lacks characters such as those of
      `｜DSML｜`.
    - Special tokens get random names that no text has: for a schema with the string `<|im_end|>`
      llguidance would require the token, which ends the answer. They are referred to by id.
    - Normalization is removed: strings of a schema are written unchanged, such as an `e` followed
      by a combining accent.
    """
    nonce = uuid.uuid4().hex
    model = described["model"]
    vocabulary = model.get("vocab") or []
    spell = _byte_level if _is_byte_level(described.get("decoder")) else str
    added = []
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
            added.append({**token, "content": name})
    described["added_tokens"] = added
    described["normalizer"] = _without_normalization(described.get("normalizer"))
    ids = vocabulary.values() if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
    return described, max([*ids, *(token["id"] for token in added)], default=-1)


def _is_byte_level(decoder: Any) -> bool:
    match decoder:
        case {"type": "Sequence", "decoders": list(inner)}:
            return any(map(_is_byte_level, inner))
        case _:
            return isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"


def _byte_level(text: str) -> str:
    """Return a text in the alphabet of byte-level tokenizers, which has a printable letter for each
    byte (GPT-2's `bytes_to_unicode`)."""
    return "".join(_LETTERS[byte] for byte in text.encode())


def _without_normalization(normalizer: Any) -> Any:
    """Return a normalizer without Unicode normalization forms."""
    match normalizer:
        case {"type": "Sequence", "normalizers": list(inner)}:
            left = [each for each in map(_without_normalization, inner) if each is not None]
            return {"type": "Sequence", "normalizers": left} if left else None
        case {"type": kind} if kind in _NORMALIZATION_FORMS:
            return None
        case _:
            return normalizer
