"""Random values of a JSON schema: guesses that the schema guides, of which another judge keeps
what is valid."""

from collections.abc import Iterator
from itertools import islice, permutations, product
from random import Random
from typing import Any

from tests.worker.grammar.validity import is_surely_valid

_GUESSES = 20
_DEPTH = 5
_TEXTS = ["", "a", "ab", "b", "xyz", "12", "é", "a\nb", '"', "\\", "</tool_call>", "<|im_end|>"]
_FORMATTED = ["127.0.0.1", "::1", "a@b.co", "01234567-89ab-4def-8123-456789abcdef"]
_NUMBERS = [0, 1, -1, 2, 3, 5, 12, 0.5, -0.5, 0.25, 1.01, 10, -20, 100, 2**53]


def valid_values(schema: dict[str, Any], random: Random) -> Iterator[Any]:
    """A few, without -0.0."""
    for _ in range(_GUESSES):
        value = _guess(schema, schema, random, 0)
        if is_surely_valid(value, schema) and "-0.0" not in repr(value):
            yield _written(value)


def orders(value: Any, most: int) -> Iterator[Any]:
    """A value with the names of its objects in some orders, its own one first."""
    match value:
        case dict():
            for names in permutations(value):
                inner = (tuple(orders(value[name], most)) for name in names)
                for values in islice(product(*inner), most):
                    yield dict(zip(names, values, strict=True))
        case list():
            yield from map(list, product(*(tuple(orders(each, most)) for each in value)))
        case _:
            yield value


def _written(value: Any) -> Any:
    """As grammars have it written: whole numbers without a point."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: _written(each) for name, each in value.items()}
        case list():
            return [_written(each) for each in value]
        case _:
            return value


def _guess(whole: dict[str, Any], schema: Any, random: Random, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _DEPTH:
        return random.choice([None, True, *_TEXTS, *_NUMBERS, [], {}])
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _guess(whole, whole["$defs"].get(name, whole), random, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return random.choice(schema["enum"])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return _guess(whole, random.choice(schema[key]), random, depth + 1)
    kind = schema.get("type", random.choice(["null", "object", "array", "string", "number"]))
    match random.choice(kind) if isinstance(kind, list) else kind:
        case "null":
            return None
        case "boolean":
            return random.random() < 0.5
        case "string":
            return random.choice([*_TEXTS, *_FORMATTED, "".join(random.choices("ab1é", k=3))])
        case "array":
            first = schema.get("prefixItems", [])
            items = [*first, *[schema.get("items", {})] * random.randrange(4)]
            return [_guess(whole, item, random, depth + 1) for item in items]
        case "object":
            properties = schema.get("properties", {})
            patterned = list(schema.get("patternProperties", {}).values())
            others = schema.get("additionalProperties", {})
            required = schema.get("required", [])
            names = [name for name in properties if name in required or random.random() < 0.5]
            names += [name for name in required if name not in properties]
            names += random.sample(["a", "b", "x1", "é"], random.randrange(2))
            return {
                name: _guess(
                    whole,
                    properties.get(name, random.choice([*patterned, others])),
                    random,
                    depth + 1,
                )
                for name in names
            }
        case "integer" | "number":
            near = [schema[key] for key in schema if key.endswith("imum")]
            near += [each + 1 for each in near] + [each - 1 for each in near]
            return random.choice([*_NUMBERS, *near, random.randrange(-50, 50)])
    return None
