"""Texts of clients in which the names of control tokens are split."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.chat_template import AddedTokenSplitter

_NONCE = "\x00"
_TEXTS = st.text(alphabet="<|a>", max_size=12)
_MANY = [f"<unused{number}>" for number in range(6242)]
"""As Gemma has them."""


@given(st.sets(_TEXTS.filter(lambda text: len(text) > 1)), _TEXTS)
def test_each_token_is_split_behind_its_first_character(tokens: set[str], text: str) -> None:
    found = AddedTokenSplitter(tokens).split(text, _NONCE)
    begins = [any(text.startswith(token, at) for token in tokens) for at in range(len(text))]
    marked = "".join(text[at] + _NONCE * begins[at] for at in range(len(text)))
    assert found in (marked, marked + _NONCE)
    assert not any(token in found for token in tokens)


def test_runs_of_blanks_are_no_control_tokens() -> None:
    splitter = AddedTokenSplitter(["\n\n", "\u2581\u2581", "  ", "\n<end>"])
    assert splitter.split("a\n\n  b\u2581\u2581", _NONCE) == "a\n\n  b\u2581\u2581"
    assert splitter.split("a\n\n<end>", _NONCE) == f"a\n\n{_NONCE}<end>"


def test_a_value_is_split_in_all_its_strings() -> None:
    splitter = AddedTokenSplitter(["<s>"])
    assert splitter.split({"<s>": ["<s", 1, None, ("x<s>",)]}, "N") == {
        "<Ns>": ["<sN", 1, None, ["x<Ns>"]]
    }


@pytest.mark.parametrize("piece", ["<unused", "<", "<unused62411", "a <b>"])
def test_thousands_of_tokens_cost_little_more_than_a_few(piece: str) -> None:
    few, many = AddedTokenSplitter(_MANY[:3]), AddedTokenSplitter(_MANY)
    text = piece * (200_000 // len(piece))

    def took_s(splitter: AddedTokenSplitter) -> float:
        times = []
        for _ in range(3):
            begun = time.process_time()
            splitter.split(text, _NONCE)
            times.append(time.process_time() - begun)
        return min(times)

    assert took_s(many) < 20 * took_s(few) + 0.01
