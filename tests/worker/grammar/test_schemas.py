"""Whatever a schema's grammar allows is valid; what cannot be enforced is refused by its place."""

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import InvalidRequest
from shared.messages.structured import Structure
from tests.tiers import examples
from tests.worker.grammar.random_schemas import SCHEMAS
from tests.worker.grammar.validity import invalidity
from tests.worker.grammar.walk import Vocabulary
from worker.answer.format import PLAIN_FORMAT
from worker.answer.grammar import Bound, answer_grammar
from worker.grammar.schemas import subschemas

_WALKS = 3


def grammar_of(schema: Any) -> str:
    structure = Structure("json", schema, "schema")
    return answer_grammar(PLAIN_FORMAT, Bound(structure, [], False, False, False, False))


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


def is_place(schema: Any, path: str) -> bool:
    """Whether a schema stands there."""
    if not path:
        return True
    return any(
        path == step or (path.startswith(f"{step}.") and is_place(inner, path[len(step) + 1 :]))
        for step, inner in subschemas(schema)
    )
