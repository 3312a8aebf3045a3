"""Grammars of answers: what each family writes is allowed, and whatever is allowed is valid."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import validate
from llguidance.numpy import allocate_token_bitmask
from tokenizers import AddedToken as TokenizersToken
from tokenizers import Tokenizer

from tests.worker.answer.families import FAMILIES, Family, read
from worker.answer.control import AddedToken, ControlTokenCodec
from worker.answer.formats.base import Tool
from worker.answer.grammar import AnswerConstraint, answer_grammar, section_grammars
from worker.answer.harmony import HarmonyParser
from worker.answer.messages import MessagesParser
from worker.answer.model_output_format import ModelOutputFormat
from worker.grammar.compiler import GrammarCompiler
from worker.grammar.schemas import arguments_schema

_SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "days": {"type": "integer", "minimum": 0, "maximum": 14},
            "units": {"enum": ["C", "F"]},
            "exact": {"type": "boolean"},
            "where": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "tags": {"$ref": "#/$defs/tags"}},
                "required": ["x"],
                "additionalProperties": False,
            },
        },
        "required": ["city", "units"],
        "$defs": {
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3}
        },
    },
    "now": {"type": "object", "properties": {}},
}
TOOLS = [Tool(name, parameters=arguments_schema(schema)) for name, schema in _SCHEMAS.items()]
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("get_weather", {"city": "Paris", "units": "C"}),
    ("get_weather", {"city": "São", "days": 3, "units": "F", "exact": True}),
    ("get_weather", {"city": "", "units": "C", "where": {"x": 1.5, "tags": ["a", "b"]}}),
    ("now", {}),
]
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("get_weather", {"city": "Paris"}),
    ("get_weather", {"city": "Paris", "units": "K"}),
    ("get_weather", {"city": 5, "units": "C"}),
    ("get_wether", {"city": "Paris", "units": "C"}),
    ("now", {"where": 1}),
]

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


class Compiled:
    """A family with a real tokenizer, to which its tokens were added."""

    def __init__(
        self, family: Family, folder: Path, messages: type[MessagesParser] = HarmonyParser
    ) -> None:
        self.family = family
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        for text, special in family.added.items():
            token = TokenizersToken(text, normalized=False, special=special)
            add = self.tokenizer.add_special_tokens if special else self.tokenizer.add_tokens
            add([token])
        ids = {
            text: AddedToken(self.id_of(text), special) for text, special in family.added.items()
        }
        reasoning = family.reasoning.markers if family.reasoning else ()
        tools = family.tool_format.markers if family.tool_format else messages.markers
        self.control = ControlTokenCodec(ids, [*tools, *reasoning], reasoning)
        self.format = ModelOutputFormat(
            self.control,
            family.reasoning,
            family.tool_format,
            messages if family.tool_format is None else None,
        )
        self.size = self.tokenizer.get_vocab_size()
        ends = [self.id_of("<|im_end|>")]
        if messages is HarmonyParser and family.tool_format is None:
            ends += [self.id_of(text) for text in ("<|call|>", "<|return|>")]
        self.ends = ends
        self.compiler = GrammarCompiler(self.tokenizer.to_str(), self.size, ends)

    def id_of(self, token: str) -> int:
        token_id = self.tokenizer.token_to_id(token)
        assert token_id is not None
        return int(token_id)

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def text_of(self, token_ids: Sequence[int]) -> list[str]:
        """The pieces as a parser gets them."""
        pieces: list[str] = []
        plain: list[int] = []
        for token_id in token_ids:
            if (character := self.control.by_id.get(token_id)) is not None:
                pieces += [self.tokenizer.decode(plain), character]
                plain = []
            else:
                plain.append(token_id)
        return [*pieces, self.tokenizer.decode(plain)]

    def accepts(self, grammar: str, text: str) -> bool:
        matcher = self.compiler.matcher(grammar)
        token_ids = self.encode(text)
        if token_ids[-1] in self.ends:
            token_ids.pop()
        if matcher.consume_allowed(token_ids) < len(token_ids):
            return False
        return matcher.stopped or matcher.consume_allowed(self.ends[:1]) == 1


@pytest.fixture(scope="module")
def known() -> dict[str, Compiled]:
    return {}


@pytest.fixture
def compiled(family: Family, demo_folder: Path, known: dict[str, Compiled]) -> Compiled:
    if family.name not in known:
        known[family.name] = Compiled(family, demo_folder)
    return known[family.name]


def required(compiled: Compiled, *, parallel: bool = False, thinks: bool = True) -> str:
    bound = AnswerConstraint(None, TOOLS, True, parallel, opened=False, thinks=thinks)
    return answer_grammar(compiled.format, bound)


@each_family
def test_calls_as_the_family_writes_them_are_allowed(family: Family, compiled: Compiled) -> None:
    grammar = required(compiled)
    for call in CALLS:
        assert compiled.accepts(grammar, family.write([call])), call


@each_family
def test_calls_that_the_tools_do_not_allow_are_not(family: Family, compiled: Compiled) -> None:
    grammar = required(compiled)
    for call in WRONG:
        quoted = family.verbatim or "gemma" in family.name or family.name == "lfm2"
        if call[1].get("city") == 5 and not quoted:
            continue  # without quotes a 5 may be a string
        assert not compiled.accepts(grammar, family.write([call])), call


@each_family
def test_several_calls_are_allowed_where_they_may_be(family: Family, compiled: Compiled) -> None:
    two = family.write(CALLS[:2])
    if family.tool_format is None:
        pytest.skip("a call ends the turn")
    assert compiled.accepts(required(compiled, parallel=True), two)
    assert not compiled.accepts(required(compiled), two)


@each_family
def test_what_follows_the_opening_of_a_call_has_the_same_grammar(
    family: Family, compiled: Compiled
) -> None:
    sections = section_grammars(compiled.format, TOOLS, parallel=False)
    if family.tool_format is None:
        assert set(sections) == {"get_weather", "now"}
        assert compiled.accepts(sections["get_weather"], '{"city": "Paris", "units": "C"}')
        assert not compiled.accepts(sections["get_weather"], '{"city": "Paris"}')
        return
    assert set(sections) == {""}
    assert all(compiled.accepts(sections[""], family.write([call])) for call in CALLS)


@each_family
def test_whatever_the_grammar_allows_is_read_as_a_valid_call(
    family: Family, compiled: Compiled
) -> None:
    """Random tokens, of which those that may end something come more often."""
    draw = random.Random(7)
    grammar = required(compiled, thinks=False)
    ended = 0
    for _ in range(60):
        token_ids = _random_answer(compiled, grammar, draw)
        if token_ids is None:
            continue
        ended += 1
        got = read(family.parser_with(compiled.control, TOOLS), compiled.text_of(token_ids))
        assert len(got.calls) == 1, compiled.text_of(token_ids)
        name, arguments = got.calls[0]
        validate(json.loads(arguments), _SCHEMAS[name])
    assert ended >= 30


def _random_answer(compiled: Compiled, grammar: str, draw: random.Random) -> list[int] | None:
    matcher = compiled.compiler.matcher(grammar)
    closing = {
        token
        for text in ('"', '"}', "}", "}}", "]", "\n", "</", "/", "<", "parameter", "function")
        for token in compiled.encode(text)
    } | set(compiled.control.by_id)
    token_ids: list[int] = []
    bitmask = allocate_token_bitmask(1, compiled.size)
    for _ in range(300):
        assert matcher.fill(bitmask, 0), matcher.error
        bits = np.unpackbits(bitmask.view(np.uint8), bitorder="little")
        allowed = bits[: compiled.size].nonzero()[0].tolist()
        assert allowed
        ends = [token for token in allowed if token in closing or token in compiled.ends]
        token = draw.choice(ends if ends and draw.random() < 0.6 else allowed)
        if token in compiled.ends:
            return token_ids
        assert matcher.consume(token)
        token_ids.append(token)
        if matcher.stopped:
            assert matcher.error is None
            return token_ids
    return None
