"""Texts that cannot fit are found early, and none that fits is refused."""

import random
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from worker.engine import prompt_tokens
from worker.engine.prompt_tokens import (
    TooManyTokens,
    check_length,
    counted,
    sufficient_part,
    tokenised,
)

_LENGTH = 40_000
_PIECE = 4096
_RANDOM = random.Random(1)
_WORDS = [
    "".join(_RANDOM.choice("abcdefghijklmnop") for _ in range(_RANDOM.randint(1, 12)))
    for _ in range(3000)
]
_TEXTS = {
    "words": " ".join(_RANDOM.choice(_WORDS) for _ in range(_LENGTH // 7)),
    "lines": "\n".join(_RANDOM.choice(_WORDS) for _ in range(_LENGTH // 7)),
    "one letter": "a" * _LENGTH,
    "no spaces": "".join(_RANDOM.choice("abcdefgh") for _ in range(_LENGTH)),
    "spaces": " " * _LENGTH,
    "other letters": "水と火" * (_LENGTH // 3),
    "long words": " ".join("abcdefgh" * 200 for _ in range(_LENGTH // 1600)),
}


def _trained(kind: str) -> Tokenizer:
    sample = [" ".join(_WORDS), "a" * 500, " " * 64, "水と火 "]
    trainer: trainers.Trainer
    if kind == "byte-level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=3000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    elif kind == "one word":  # as Llama 2's and Gemma's: nothing splits the text
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=["<unk>"])
        sample = [_WORDS[n] for n in range(300)]
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=1000, unk_token="<unk>", special_tokens=["<unk>"]
        )
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=3000, special_tokens=["[UNK]"])
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer


class _Encode:
    """Counts the characters that it was given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.characters = 0

    def __call__(self, text: str) -> list[int]:
        self.characters += len(text)
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_tokens, "_PIECE_CHARACTERS", _PIECE)


@pytest.fixture(scope="module", params=["byte-level", "one word", "unigram", "word pieces"])
def encode(request: pytest.FixtureRequest) -> _Encode:
    return _Encode(_trained(request.param))


@pytest.mark.parametrize("what", _TEXTS)
def test_a_text_that_just_fits_is_never_refused(encode: _Encode, what: str) -> None:
    text = _TEXTS[what]
    expected = encode(text)
    paused: list[None] = []
    check_length(text, len(expected), encode, lambda: paused.append(None))
    assert tokenised([text], len(expected), encode) == expected


@pytest.mark.parametrize("what", _TEXTS)
def test_what_is_far_too_long_is_refused_after_a_part_of_it(encode: _Encode, what: str) -> None:
    text = _TEXTS[what]
    tokens = len(encode(text))
    if tokens < 3000:
        return  # its pieces may have as few tokens as the cuts are forgiven
    encode.characters = 0
    with pytest.raises(TooManyTokens) as refused:
        check_length(text, tokens // 10, encode)
    assert tokens // 10 < refused.value.at_least <= tokens
    assert encode.characters <= 0.5 * len(text)


@pytest.mark.parametrize("what", _TEXTS)
def test_the_part_that_is_enough_has_the_first_tokens(encode: _Encode, what: str) -> None:
    text = _TEXTS[what]
    expected = encode(text)
    limit = max(1, len(expected) // 10)
    part = sufficient_part(text, limit, encode)
    assert encode(part)[:limit] == expected[:limit]


def test_what_is_only_counted_is_counted_piece_by_piece(encode: _Encode) -> None:
    text = _TEXTS["words"]
    paused: list[None] = []
    tokens = len(counted([text, "abc"], encode, lambda: paused.append(None)))
    assert abs(tokens - len(encode(text)) - len(encode("abc"))) <= 2 * len(paused)
    assert len(paused) >= _LENGTH // _PIECE


def test_of_many_parts_no_more_are_tokenised_than_may_be() -> None:
    pieces: list[str] = []

    def encode(text: str) -> list[int]:
        pieces.append(text)
        return [1] * len(text)

    with pytest.raises(TooManyTokens) as refused:
        tokenised(["ab"] * 1000, 20, encode)
    assert (refused.value.at_least, len(pieces)) == (22, 11)
    assert tokenised(["ab"] * 10, 20, encode) == [1] * 20


def test_a_short_text_is_not_tokenised_twice(tmp_path: Path) -> None:
    def encode(text: str) -> list[int]:
        raise AssertionError("it may fit")

    check_length("x" * _PIECE, 10, encode)
    check_length("x" * 40 * _PIECE, 10 * _PIECE, encode)
    assert sufficient_part("x" * _PIECE, 10, encode) == "x" * _PIECE
