"""Tokenizers that are programs, as llguidance gets them."""

import io
import json
from typing import Any

import pytest
import sentencepiece
from transformers import AddedToken
from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

from worker.grammar.compiler import GrammarCompiler
from worker.grammar.python_tokenizer import PythonTokenizerAdapter

_TEXT = ["the weather in Paris is warm, and in Rome", '{"city": "Paris", "days": 3}'] * 20


class Program(SentencePieceBackend):  # type: ignore[misc]
    """As models bring it: it decodes tokens of bytes to their bytes."""

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return str(self.sp_model.decode(tokens))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small one of SentencePiece's, with a token for every byte."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_TEXT), model_writer=written, vocab_size=300, byte_fallback=True,
        hard_vocab_limit=False, add_dummy_prefix=False, remove_extra_whitespaces=False,
        minloglevel=2,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("sentencepiece") / "tokenizer.model"
    path.write_bytes(written.getvalue())
    made = Program(vocab_file=str(path), unk_token="<unk>", eos_token="</s>")
    made.add_tokens([AddedToken("<tool_call>", special=False)])
    return made


@pytest.mark.parametrize(
    "text",
    ["the weather in Rome", " in  Paris", "S\u00e3o Paulo \u6771\u4eac\n", "a <tool_call> </s>"],
)
def test_every_text_is_written_in_tokens(tokenizer: Any, text: str) -> None:
    wrapped = PythonTokenizerAdapter(tokenizer)
    token_ids = wrapped(text)
    assert b"".join(wrapped.tokens[each] for each in token_ids) == text.encode()
    assert tokenizer.eos_token_id not in token_ids


def test_a_grammar_holds_for_its_tokens(tokenizer: Any) -> None:
    wrapped = PythonTokenizerAdapter(tokenizer)
    compiler = GrammarCompiler(wrapped, len(tokenizer), [tokenizer.eos_token_id])
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "\u6771\u4eac"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    grammar = json.dumps({"grammars": [{"json_schema": schema}]})
    for city, allowed in (("Paris", True), ("\u6771\u4eac", True), ("Rome", False)):
        matcher = compiler.matcher(grammar)
        token_ids = wrapped(json.dumps({"city": city}, ensure_ascii=False))
        assert (matcher.consume_allowed(token_ids) == len(token_ids)) == allowed


def test_an_end_token_is_no_text(tokenizer: Any) -> None:
    wrapped = PythonTokenizerAdapter(tokenizer)
    compiler = GrammarCompiler(wrapped, len(tokenizer), [tokenizer.eos_token_id])
    matcher = compiler.matcher(json.dumps({"grammars": [{"lark_grammar": 'start: "</s>"'}]}))
    assert matcher.consume_allowed([tokenizer.eos_token_id]) == 0


def test_a_tokenizer_that_decodes_to_something_else_is_refused(tokenizer: Any) -> None:
    spelling = SentencePieceBackend(vocab_file=tokenizer.vocab_file, unk_token="<unk>")
    with pytest.raises(ValueError, match=r"its token \d+ is '<0x00>'"):
        PythonTokenizerAdapter(spelling)
