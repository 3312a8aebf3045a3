# A tokenizer that is a program, as some models bring it: the same tokens as in the tokenizer.json
# beside it. It is loaded as remote code, so nothing of this project.

from typing import Any

from tokenizers import Tokenizer, pre_tokenizers
from transformers import PreTrainedTokenizer


def _byte_decoder() -> dict[str, int]:
    """GPT-2's characters for bytes: those that can be seen are themselves."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in seen]
    alphabet = {chr(byte): byte for byte in seen}
    alphabet.update({chr(0x100 + number): byte for number, byte in enumerate(others)})
    assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
    return alphabet


class ProgramTokenizer(PreTrainedTokenizer):  # type: ignore[misc]
    vocab_files_names = {"vocab_file": "tokenizer.json"}  # noqa: RUF012

    def __init__(self, vocab_file: str, **kwargs: Any) -> None:
        self._inner = Tokenizer.from_file(vocab_file)
        self._decoder = _byte_decoder()
        if kwargs.pop("tells_bytes", True):
            self.byte_decoder = self._decoder
        super().__init__(**kwargs)

    @property
    def vocab_size(self) -> int:
        return int(self._inner.get_vocab_size(with_added_tokens=False))

    def get_vocab(self) -> dict[str, int]:
        return dict(self._inner.get_vocab())

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        return list(self._inner.encode(text, add_special_tokens=False).tokens)

    def _convert_token_to_id(self, token: str) -> int | None:
        found = self._inner.token_to_id(token)
        return None if found is None else int(found)

    def _convert_id_to_token(self, index: int) -> str | None:
        found = self._inner.id_to_token(index)
        return None if found is None else str(found)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        characters = "".join(tokens)
        return bytes(self._decoder[each] for each in characters).decode(errors="replace")
