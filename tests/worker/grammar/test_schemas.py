"""Whatever a schema's grammar allows is valid, and what is valid it allows; what cannot be enforced
is refused by its place."""

import json
from itertools import islice
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import InvalidRequest
from shared.messages.structured import Structure
from tests.tiers import examples
from tests.worker.grammar.random_schemas import SCHEMAS
from tests.worker.grammar.random_values import orders, valid_values
from tests.worker.grammar.validity import invalidity
from tests.worker.grammar.walk import Vocabulary
from worker.answer.grammar import AnswerConstraint, answer_grammar
from worker.answer.model_output_format import PLAIN_FORMAT
from worker.grammar.schemas import subschemas

_WALKS = 3
_VALUES = 4
_ORDERS = 300


def grammar_of(schema: Any) -> str:
    structure = Structure("json", schema, "schema")
    return answer_grammar(PLAIN_FORMAT, AnswerConstraint(structure, [], False, False, False, False))


@settings(max_examples=examples(150, 4000))
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_an_answer_of_any_schema_is_valid(
    vocabulary: Vocabulary, schema: dict[str, Any], seed: int
) -> None:
    try:
        vocabulary.compiler.check_schema(schema, "schema")
    except InvalidRequest as error:
        assert error.param is not None
        assert error.message.startswith(f"{error.param}: ")
        assert is_place(schema, error.param.removeprefix("schema").removeprefix("."))
        return
    grammar = grammar_of(schema)
    random = Random(seed)
    for _ in range(_WALKS):
        walk = vocabulary.walk(vocabulary.compiler.matcher(grammar), random)
        assert walk.problem is None, walk
        if walk.text is not None:
            assert invalidity(walk.text, schema) is None, walk.text


@settings(max_examples=examples(100, 4000))
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_a_valid_value_of_any_schema_is_allowed(
    vocabulary: Vocabulary, schema: dict[str, Any], seed: int
) -> None:
    """In one order of its names: the grammar has that of the schema."""
    try:
        vocabulary.compiler.check_schema(schema, "schema")
    except InvalidRequest:
        return
    grammar = grammar_of(schema)
    for value in islice(valid_values(schema, Random(seed)), _VALUES):
        texts = (json.dumps(each, ensure_ascii=False) for each in orders(value, 30))
        assert any(
            vocabulary.allows(vocabulary.compiler.matcher(grammar), text)
            for text in islice(texts, _ORDERS)
        ), value


def is_place(schema: Any, path: str) -> bool:
    """Whether a schema stands there."""
    if not path:
        return True
    return any(
        path == step or (path.startswith(f"{step}.") and is_place(inner, path[len(step) + 1 :]))
        for step, inner in subschemas(schema)
    )
