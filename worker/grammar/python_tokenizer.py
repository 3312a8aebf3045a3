"""Adapter for tokenizers that are written in Python, not in Hugging Face's JSON form."""

import re
import uuid
from collections.abc import Sequence
from typing import Any

_SPACE = "\u2581"
"""SentencePiece's symbol for a space."""
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CHECKED_TOKENS = 256
"""Number of tokens that are decoded to verify their bytes."""


class PythonTokenizerAdapter:
    """The interface of llguidance's `TokenizerWrapper`. Text never becomes a special token, as in
    `vocabulary.without_special_text`.

    Args:
        tokenizer: a Python tokenizer of transformers.

    Raises:
        ValueError: the bytes of its tokens cannot be determined.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        special = {token_id for token_id, token in added.items() if token.special}
        special.update(tokenizer.all_special_ids)
        if (pieces := getattr(tokenizer, "sp_model", None)) is not None:
            special.update(filter(pieces.is_control, range(pieces.get_piece_size())))
        nonce = uuid.uuid4().hex
        self.tokens: list[bytes] = []
        for token_id in range(max([len(tokenizer) - 1, *added]) + 1):
            if token_id in special:
                self.tokens.append(f"<{nonce}:{token_id}>".encode())
            elif token_id in added:
                self.tokens.append(added[token_id].content.encode())
            else:
                self.tokens.append(_bytes_of(tokenizer, token_id))
        self.special_token_ids: Sequence[int] = sorted(special)
        self.eos_token_id = self.special_token_ids[0] if special else 0
        self._ids = {token: number for number, token in enumerate(self.tokens) if token}
        self._longest = max(map(len, self._ids), default=0)
        self._verify({*added, *special})

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokenize a text: with the tokenizer if its tokens are exactly the text, else greedily
        with the longest tokens."""
        wanted = text.encode() if isinstance(text, str) else text
        token_ids = list(
            self._tokenizer.encode(wanted.decode(errors="replace"), add_special_tokens=False)
        )
        if b"".join(self.tokens[each] for each in token_ids) == wanted:
            return token_ids
        token_ids, at = [], 0
        while at < len(wanted):
            ends = range(min(len(wanted), at + self._longest), at, -1)
            end = next((end for end in ends if wanted[at:end] in self._ids), at + 1)
            token_ids += [self._ids[wanted[at:end]]] if wanted[at:end] in self._ids else []
            at = end
        return token_ids

    def _verify(self, added: set[int]) -> None:
        """Raise ValueError if the tokenizer decodes ordinary tokens to something else."""
        plain = [number for number, token in enumerate(self.tokens) if token]
        for token_id in [each for each in plain if each not in added][:_CHECKED_TOKENS]:
            expected = self.tokens[token_id].decode(errors="replace")
            decoded = self._tokenizer.decode([token_id])
            if "\ufffd" not in expected and decoded.strip() != expected.strip():
                raise ValueError(f"its token {token_id} is {decoded!r}, not {expected!r}")


def _bytes_of(tokenizer: Any, token_id: int) -> bytes:
    """Return the bytes of an ordinary token; empty if no token has the id."""
    token = tokenizer.convert_ids_to_tokens(token_id)
    if token is None or isinstance(token, bytes):
        return token or b""
    if (alphabet := getattr(tokenizer, "byte_decoder", None)) is not None:  # tiktoken's and GPT-2's
        return bytes(alphabet[character] for character in token)
    if hasattr(tokenizer, "sp_model"):
        if (byte := _BYTE.fullmatch(token)) is not None:
            return bytes.fromhex(byte[1])
        return str(token).replace(_SPACE, " ").encode()
    raise ValueError(f"a {type(tokenizer).__name__}: the bytes of its tokens are not known")
