"""Tokens to text: whatever the pieces, the whole is the whole, and nothing leaks."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from worker.answer.answer import AnswerDecoder, DeliveredLengths
from worker.answer.model_output_format import PlainParser
from worker.answer.text import REPLACEMENT, Decode, Detokenizer, StopScanner

_CHUNKS = st.sampled_from(
    [
        "👩‍👩‍👧",
        "🇩🇪🇫🇷",
        "e\u0301",
        "漢字かな",
        "\u200d",
        "नमस्ते",
        "\ufffd",
        "👋🏽",
        " ",
        "\n",
        "Hello",
    ]
)
_TEXTS = st.lists(_CHUNKS | st.text(max_size=5), max_size=12).map("".join)
_SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=20)
_PROMPT = "The answer is:"
_LETTERS = st.text("ab", max_size=24)
_STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


@dataclass(frozen=True, slots=True)
class Coder:
    """A tokenizer, shown by its name where a property fails."""

    name: str
    tokenizer: Any = field(repr=False)

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def of_bytes(self, data: bytes) -> list[int]:
        """One token a byte; for the tiny model's tokenizer only."""
        vocabulary = self.tokenizer.get_vocab()
        return [vocabulary[chr(_CODES[byte])] for byte in data]


def _gpt2_codes() -> list[int]:
    """The code point by which byte-level tokenizers spell each byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(0x100)
    return [byte if byte in printable else next(others) for byte in range(256)]


_CODES = _gpt2_codes()


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> Coder:
    return Coder("tiny", Tokenizer.from_file(str(tiny_model / "tokenizer.json")))


@pytest.fixture(scope="module")
def demo(demo_folder: Path) -> Coder:
    return Coder("demo", Tokenizer.from_file(str(demo_folder / "tokenizer.json")))


@pytest.fixture(scope="module", params=["tiny", "demo"])
def coder(request: pytest.FixtureRequest) -> Coder:
    found: Coder = request.getfixturevalue(request.param)
    return found


def _groups(ids: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """`ids` cut into groups of these sizes, over and over."""
    groups, at, turn = [], 0, 0
    while at < len(ids):
        size = sizes[turn % len(sizes)]
        groups.append(list(ids[at : at + size]))
        at, turn = at + size, turn + 1
    return groups


def _pieces(decode: Decode, prompt_ids: list[int], groups: list[list[int]]) -> list[str]:
    detokenizer = Detokenizer(decode, prompt_ids)
    return [*(detokenizer.push(group) for group in groups), detokenizer.finish()]


# Detokenizer.


@settings(max_examples=200)
@given(text=_TEXTS, sizes=_SIZES)
def test_the_pieces_of_any_text_make_the_whole_text(
    coder: Coder, text: str, sizes: list[int]
) -> None:
    ids = coder.encode(text)
    whole = coder.decode(ids)
    if coder.name == "tiny":  # the demo model's lacks some bytes
        assert whole == text
    for groups in (_groups(ids, [1]), _groups(ids, sizes)):
        pieces = _pieces(coder.decode, coder.encode(_PROMPT), groups)
        assert "".join(pieces) == whole


@settings(max_examples=200)
@given(choices=st.lists(st.integers(0, 2**20), max_size=30), sizes=_SIZES)
def test_random_tokens_of_either_vocabulary_make_what_decoding_them_at_once_makes(
    coder: Coder, choices: list[int], sizes: list[int]
) -> None:
    ids = [choice % coder.tokenizer.get_vocab_size() for choice in choices]
    for groups in (_groups(ids, [1]), _groups(ids, sizes)):
        pieces = _pieces(coder.decode, coder.encode(_PROMPT), groups)
        assert "".join(pieces) == coder.decode(ids)


def test_a_character_comes_whole_with_its_last_byte_and_letters_come_at_once(
    tiny: Coder,
) -> None:
    ids = tiny.of_bytes("a😀é".encode())
    pieces = _pieces(tiny.decode, tiny.of_bytes(b"A"), [[token] for token in ids])
    assert pieces == ["a", "", "", "", "😀", "", "é", ""]


def test_a_half_character_at_the_very_end_becomes_one_replacement_character(
    tiny: Coder,
) -> None:
    ids = tiny.of_bytes(b"a\xf0\x9f")
    pieces = _pieces(tiny.decode, tiny.of_bytes(b"A"), [[token] for token in ids])
    assert pieces == ["a", "", "", REPLACEMENT]


def test_endless_broken_bytes_are_not_held_back_for_ever(
    tiny: Coder,
) -> None:
    detokenizer = Detokenizer(tiny.decode, tiny.of_bytes(b"A"))
    emitted = "".join(detokenizer.push(tiny.of_bytes(b"\x80")) for _ in range(100))
    assert set(emitted) == {REPLACEMENT} and len(emitted) >= 97


def test_a_prompt_that_ends_inside_a_character_does_not_disturb_the_answer(
    tiny: Coder,
) -> None:
    prompt = tiny.of_bytes(b"hi \xf0\x9f")
    groups = _groups(tiny.of_bytes("ok é".encode()), [1])
    assert "".join(_pieces(tiny.decode, prompt, groups)) == "ok é"


def _byte_fallback_tokenizer() -> Any:
    """As Llama 2, Mistral and Gemma have it: what is no token is spelled in byte tokens."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    client_messages = "▁abcdefghijklmnopqrstuvwxyz"
    vocabulary.update(
        {client_message: 256 + number for number, client_message in enumerate(client_messages)}
    )
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


@given(text=st.lists(st.sampled_from(["a", "▁b", "😀", "é", "漢"]), max_size=8).map("".join))
def test_characters_spelled_in_byte_tokens_come_whole(text: str) -> None:
    coder = Coder("byte fallback", _byte_fallback_tokenizer())
    ids = coder.encode(text)
    pieces = _pieces(coder.decode, coder.encode("a"), _groups(ids, [1]))
    assert "".join(pieces) == coder.decode(ids) == text.replace("▁", " ")


# Stop strings.


def _scan(stops: Sequence[str], pieces: Sequence[str]) -> tuple[str, bool]:
    """What a scanner lets through of these pieces, and whether it stopped."""
    scanner = StopScanner(stops)
    emitted = ""
    for piece in pieces:
        emitted += scanner.push(piece)
        if scanner.stopped:
            return emitted, True
    return emitted + scanner.finish(), False


def _before_first_stop(text: str, stops: Sequence[str]) -> str:
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def _one_lies_inside_another(stops: Sequence[str]) -> bool:
    return any(inner in outer[1:] for inner in stops for outer in stops if inner != outer)


@settings(max_examples=500)
@given(pieces=st.lists(st.text("ab", max_size=4), max_size=10), stops=_STOPS)
def test_the_text_before_the_first_stop_string_comes_out_whatever_the_pieces(
    pieces: list[str], stops: list[str]
) -> None:
    text = "".join(pieces)
    if _one_lies_inside_another(stops):
        return  # which of them is first is a question of its own, below
    expected = _before_first_stop(text, stops)
    for cut in (pieces, list(text), [text]):
        assert _scan(stops, cut) == (expected, expected != text)


@given(pieces=st.lists(st.text("ab", max_size=4), max_size=10), stops=_STOPS)
def test_nothing_that_could_begin_a_stop_string_leaves_the_scanner_early(
    pieces: list[str], stops: list[str]
) -> None:
    scanner = StopScanner(stops)
    emitted = ""
    for number, piece in enumerate(pieces, 1):
        emitted += scanner.push(piece)
        if scanner.stopped:
            return
        so_far = "".join(pieces[:number])
        ends = [so_far[start:] for start in range(len(emitted))]
        assert not any(stop.startswith(end) for stop in stops for end in ends)


def test_a_stop_string_inside_another_stops_alike_whatever_the_pieces() -> None:
    stops = ["b", "abc"]
    results = {_scan(stops, cut) for cut in (["abc"], ["a", "b", "c"], ["ab", "c"])}
    assert len(results) == 1


# The whole stream.


def _answer(
    decode: Decode, stops: Sequence[str], resumed_ids: Sequence[int] = (), text_sent: int = 0
) -> AnswerDecoder:
    answer = AnswerDecoder(decode, [], PlainParser(), {}, stops, sent=DeliveredLengths(text_sent))
    answer.resume(resumed_ids)
    return answer


def _stream(
    decode: Decode, ids: Sequence[int], stops: Sequence[str], **resume: Any
) -> tuple[list[str], bool]:
    """The pieces of one token after another up to the end, and whether a stop string came."""
    answer = _answer(decode, stops, **resume)
    pieces = []
    for token in ids:
        pieces.append(answer.push(token).text)
        if answer.stopped:
            return pieces, True
    return [*pieces, answer.finish().text], False


@settings(max_examples=300)
@given(text=_TEXTS | _LETTERS, stops=_STOPS, data=st.data())
def test_a_stream_taken_over_at_any_token_goes_on_with_the_exact_rest(
    coder: Coder, text: str, stops: list[str], data: st.DataObject
) -> None:
    decode, ids = coder.decode, coder.encode(text)
    undisturbed, _ = _stream(decode, ids, stops)
    cut = data.draw(st.integers(0, len(undisturbed) - 1), label="cut")
    sent = "".join(undisturbed[:cut])
    rest, _ = _stream(decode, ids[cut:], stops, resumed_ids=ids[:cut], text_sent=len(sent))
    assert "".join(rest) == "".join(undisturbed[cut:])


@settings(max_examples=300)
@given(data=st.binary(max_size=20), choice=st.data())
def test_a_stream_of_broken_bytes_taken_over_at_any_token_goes_on_with_the_exact_rest(
    tiny: Coder, data: bytes, choice: st.DataObject
) -> None:
    ids = tiny.of_bytes(data)
    undisturbed, _ = _stream(tiny.decode, ids, [])
    cut = choice.draw(st.integers(0, len(ids)), label="cut")
    sent = "".join(undisturbed[:cut])
    rest, _ = _stream(tiny.decode, ids[cut:], [], resumed_ids=ids[:cut], text_sent=len(sent))
    assert sent + "".join(rest) == tiny.decode(ids)


@given(text=st.text("abc", min_size=1, max_size=20), data=st.data())
def test_text_of_resumed_tokens_that_the_client_did_not_get_is_sent_after_all(
    tiny: Coder, text: str, data: st.DataObject
) -> None:
    ids = tiny.encode(text)
    cut = data.draw(st.integers(0, len(ids)), label="cut")
    sent = data.draw(st.integers(0, cut), label="sent")
    rest, _ = _stream(tiny.decode, ids[cut:], [], resumed_ids=ids[:cut], text_sent=sent)
    assert "".join(rest) == text[sent:]


def test_nothing_comes_after_a_stop_string_that_the_resumed_tokens_already_hold(
    tiny: Coder,
) -> None:
    ids = tiny.of_bytes(b"one. two")
    answer = _answer(tiny.decode, ["."], ids[:5], 3)
    assert answer.stopped
    assert answer.push(ids[5]).text + answer.finish().text == ""
