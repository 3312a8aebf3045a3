"""Whatever is asked compiles and is enforced, or is refused in words: nothing hangs, crashes or
takes the memory."""

import json
import random
import re
from typing import Any

import psutil
import pytest

from shared.errors import InvalidRequest
from shared.messages.schemas import check_schema
from shared.messages.structured import Structure, StructureKind
from tests.worker.grammar import hostile
from tests.worker.grammar.validity import invalidity
from tests.worker.grammar.walk import Vocabulary, Walk
from worker.answer.formats.base import Tool
from worker.answer.formats.json_rules import call_schema
from worker.answer.grammar import AnswerConstraint, answer_grammar
from worker.answer.model_output_format import PLAIN_FORMAT
from worker.grammar.matcher import Matcher
from worker.grammar.schemas import arguments_schema, with_options

pytestmark = pytest.mark.timeout(60)  # a hang: the slowest takes a second or two

_WALKS = 3
_MOST_TOKENS = 120
_MOST_BYTES = 300_000_000


@pytest.fixture(autouse=True)
def memory_is_kept() -> Any:
    before = psutil.Process().memory_info().rss
    yield
    assert psutil.Process().memory_info().rss - before < _MOST_BYTES


def compiled(vocabulary: Vocabulary, kind: StructureKind, value: Any) -> list[Matcher]:
    """As many as are walked; what a structure is refused for is raised."""
    structure = Structure(kind, value, "schema")
    if kind == "json":
        vocabulary.compiler.check_schema(value, "schema")
    bound = AnswerConstraint(structure, [], False, False, opened=False, thinks=False)
    grammar = answer_grammar(PLAIN_FORMAT, bound)
    return [vocabulary.compiler.matcher(grammar) for _ in range(_WALKS)]


def walks(vocabulary: Vocabulary, kind: StructureKind, value: Any) -> list[Walk]:
    draw = random.Random(5)
    matchers = compiled(vocabulary, kind, value)
    done = [vocabulary.walk(matcher, draw, _MOST_TOKENS) for matcher in matchers]
    assert all(walk.problem is None for walk in done), done
    return done


@pytest.mark.parametrize("name", hostile.ENFORCED)
def test_a_schema_is_enforced(vocabulary: Vocabulary, name: str) -> None:
    schema = hostile.ENFORCED[name]
    check_schema(schema)
    for walk in walks(vocabulary, "json", schema):
        if walk.text is not None and "that double" not in name:  # no judge can follow those
            assert invalidity(walk.text, schema) is None


@pytest.mark.parametrize("name", hostile.REFUSED)
def test_a_schema_is_refused_by_its_place(vocabulary: Vocabulary, name: str) -> None:
    schema, place = hostile.REFUSED[name]
    with pytest.raises(InvalidRequest) as caught:
        vocabulary.compiler.check_schema(schema, "schema")
    assert caught.value.param is not None
    assert caught.value.param.startswith(f"schema{place}")
    assert re.fullmatch(r"[^\n]{10,2000}", caught.value.message)


@pytest.mark.parametrize("name", hostile.EXPRESSIONS)
def test_an_expression_is_enforced(vocabulary: Vocabulary, name: str) -> None:
    walks(vocabulary, "regex", hostile.EXPRESSIONS[name])


@pytest.mark.parametrize("name", hostile.GRAMMARS)
def test_a_grammar_is_enforced(vocabulary: Vocabulary, name: str) -> None:
    walks(vocabulary, "grammar", hostile.GRAMMARS[name])


@pytest.mark.parametrize("name", hostile.CHOICES)
def test_choices_are_enforced(vocabulary: Vocabulary, name: str) -> None:
    choices = hostile.CHOICES[name]
    for walk in walks(vocabulary, "choice", choices):
        assert walk.text is None or walk.text in choices
    matchers = compiled(vocabulary, "choice", choices)
    assert all(
        vocabulary.allows(matcher, choice)
        for matcher, choice in zip(matchers, choices, strict=False)
    )


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param(kind, each, id=name)
        for kind, values in (
            ("regex", hostile.REFUSED_EXPRESSIONS),
            ("grammar", hostile.REFUSED_GRAMMARS),
        )
        for name, each in values.items()
    ],
)
def test_an_expression_or_grammar_is_refused_in_words(
    vocabulary: Vocabulary,
    kind: StructureKind,
    value: str,
) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]{5,400}$"):
        compiled(vocabulary, kind, value)


def test_a_marker_in_a_string_is_written_as_text(vocabulary: Vocabulary) -> None:
    """Not as the token, which would end the answer."""
    schema = {"enum": ["<|im_end|>"]}
    (walk, *_) = walks(vocabulary, "json", schema)
    assert walk.text is not None
    assert json.loads(walk.text) == "<|im_end|>"
    assert vocabulary.end not in walk.token_ids


def test_a_name_is_not_written_in_other_ways(vocabulary: Vocabulary) -> None:
    """Else `a` could be an integer."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "\n": {"type": "string"}},
        "additionalProperties": {"type": "integer"},
    }
    for text, allowed in (
        ('{"a":"x"}', True),
        ('{"b":5}', True),
        ('{"a":5}', False),
        (r'{"\u0061":5}', False),
        (r'{"\n":"x"}', True),
        (r'{"\u000a":5}', False),
        (r'{"b":"\ud800"}', False),
    ):
        (matcher, *_) = compiled(vocabulary, "json", schema)
        assert vocabulary.allows(matcher, text) == allowed, text


@pytest.mark.parametrize(
    ("pattern", "allowed", "others"),
    [
        ('^[^"]+$', ["ab", "a\\", "a\n"], ['"', 'a"b']),
        (r"^[^\\]*$", ["ab", '"'], ["\\", "a\\b"]),
        ('^[^,"]{1,9}$', ["ab", "\\"], ['"', "a,b"]),
        (r"^[\x00-!#-~]+$", ["ab"], ['"']),
        (r"^\P{P}$", ["a"], ['"', "\\"]),
        ("^[^a]$", ['"', "\\"], ["a"]),
        (r"^[^\s]$", ['"', "\\"], ["\n"]),
    ],
)
def test_a_pattern_tells_quotes_from_other_characters(
    vocabulary: Vocabulary, pattern: str, allowed: list[str], others: list[str]
) -> None:
    for text in (*allowed, *others):
        (matcher, *_) = compiled(vocabulary, "json", {"type": "string", "pattern": pattern})
        assert vocabulary.allows(matcher, json.dumps(text)) == (text in allowed), text


def test_of_a_lenient_tool_only_what_is_too_much_is_left_out(vocabulary: Vocabulary) -> None:
    inexact = {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}
    assert vocabulary.compiler.problem(inexact) is not None
    assert vocabulary.compiler.problem(inexact, lenient=True) is None
    too_much = {"type": "string", "pattern": "a{1000000}"}
    assert vocabulary.compiler.problem(too_much, lenient=True) is not None


def test_what_is_too_complex_for_one_answer_ends_no_other(vocabulary: Vocabulary) -> None:
    schema = {"type": "string", "pattern": ".*x.{18}$", "minLength": 3, "maxLength": 300}
    failing, *others = compiled(vocabulary, "json", schema)
    assert vocabulary.walk(failing, random.Random(1)).problem is not None
    text = '"' + "x" * 30 + '"'
    assert all(vocabulary.allows(matcher, text) for matcher in others)


def test_a_thousand_tools_are_enforced(vocabulary: Vocabulary) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    }
    tools = [Tool(f"tool_{n}", "x" * 50, arguments_schema(parameters)) for n in range(1000)]
    schema = call_schema(tools, "arguments")
    grammar = json.dumps({"grammars": [{"json_schema": with_options(schema)}]})
    walk = vocabulary.walk(vocabulary.compiler.matcher(grammar), random.Random(3))
    assert walk.problem is None
    assert walk.text is not None
    assert invalidity(walk.text, schema) is None
