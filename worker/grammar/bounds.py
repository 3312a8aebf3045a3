"""What of a JSON schema llguidance must not see: it would take too long, or too much memory or
stack, or not be enforced exactly.

The bounds were measured with a vocabulary of 49,152 tokens: what keeps them compiles within tens
of milliseconds, and holds up no step for more than 5 ms. `benchmarks/schemas.py` measures both.
"""

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeGuard

from worker.grammar import regex
from worker.grammar.references import NOWHERE, endless, target
from worker.grammar.schemas import subschemas

MAX_LITERAL_CHARACTERS = 4096
MAX_OPTIONAL_PROPERTIES = 350
MAX_PATTERN_PROPERTIES = 64
MAX_PATTERNS_AT_ONCE = 10
"""Expressions that one string has to match: the work grows with 2 to their number."""
MAX_REFERENCE_DEPTH = 256
"""Schemas within schemas and references one after the other: they are compiled by recursion, and
1,000 objects fill a stack of 8 MB."""
MAX_UNUSUAL_REFERENCES = 64
"""By anchors and identifiers, which are not followed here."""

_LEAST_INTEGER, _MOST_INTEGER = -(2**63), 2**63 - 1
"""llguidance's integers; on their way to them numbers are floating-point ones."""
_MAX_LENGTH = 2**32 - 1
_MAX_DIVISOR = 10_000
_LITERAL = ("const", "enum")
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_LENGTHS = ("minLength", "maxLength")

Excess = tuple[list[str], str]
"""The path to a place, and what is wrong with it."""


def excess(root: Any, *, lenient: bool = False) -> Excess | None:
    """The first thing in a clean schema that is beyond the bounds; if `lenient`, not what would
    only be enforced inexactly."""
    unusual = 0
    seen: set[int] = set()
    waiting: list[tuple[list[str], Any]] = [([], root)]
    referred: list[tuple[list[str], Any]] = []  # looked at last: most stand elsewhere, too
    while waiting or referred:
        is_referred = not waiting
        path, schema = waiting.pop() if waiting else referred.pop()
        if not isinstance(schema, Mapping) or id(schema) in seen:
            continue
        seen.add(id(schema))
        problem = _danger(schema) or (None if lenient else _inexactness(schema))
        if problem is not None:
            return path, problem
        if "$ref" in schema:
            found = target(schema["$ref"], root)
            unusual += found is NOWHERE
            if unusual > MAX_UNUSUAL_REFERENCES:
                return path, f"more than {MAX_UNUSUAL_REFERENCES} references that are no pointers"
            referred.append((path, found))
        if is_referred:  # the place of the reference is all that can be named
            referred += [(path, inner) for _, inner in subschemas(schema)]
        else:
            waiting += reversed([([*path, step], inner) for step, inner in subschemas(schema)])
    return _too_deep(root) or _too_many_at_once(root) or _endless(root)


def _danger(schema: Mapping[str, Any]) -> str | None:
    """What in a schema itself would take too much."""
    for text in _texts(schema):
        if len(text) > MAX_LITERAL_CHARACTERS:
            return f"a string of {len(text)} characters; at most {MAX_LITERAL_CHARACTERS} are taken"
    for pattern in _patterns(schema):
        if (problem := regex.problem(pattern)) is not None:
            return problem
    for key in _LENGTHS:
        if _number(length := schema.get(key)) and length > _MAX_LENGTH:
            return f"{key}: more than {_MAX_LENGTH}"
    patterned = schema.get("patternProperties")
    if isinstance(patterned, Mapping) and len(patterned) > MAX_PATTERN_PROPERTIES:
        return f"patternProperties: more than {MAX_PATTERN_PROPERTIES} of them"
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        if len(properties.keys() - _required(schema)) > MAX_OPTIONAL_PROPERTIES:
            return f"more than {MAX_OPTIONAL_PROPERTIES} properties that are not required"
    divisor = schema.get("multipleOf")
    if _number(divisor) and _digits(divisor) > _MAX_DIVISOR:
        return f"multipleOf: its digits are more than {_MAX_DIVISOR}"
    return None


def _inexactness(schema: Mapping[str, Any]) -> str | None:
    """What in a schema itself would not be enforced exactly."""
    for text in _texts(schema):
        if (found := regex.UNWRITTEN.search(text)) is not None:
            return f"the character U+{ord(found.group()):04X} is never written"
    for pattern in _patterns(schema):
        if (character := regex.unwritten(pattern)) is not None:
            return f"pattern: the character U+{ord(character):04X} is never written"
    patterned = schema.get("patternProperties")
    if isinstance(patterned, Mapping):
        if any(regex.within_json(pattern) != pattern for pattern in patterned):
            return 'patternProperties: a class without `"` or `\\` is not enforced for names'
    least = schema.get("minProperties")
    if _number(least) and least > 1 + len(_required(schema)):
        return "minProperties: not enforced beyond one more than `required`, as names may repeat"
    for key in _LOWER:
        if _number(bound := schema.get(key)) and _understood(bound) < bound:
            return f"{key}: {bound} is beyond what is told apart"
    for key in _UPPER:
        if _number(bound := schema.get(key)) and _understood(bound) > bound:
            return f"{key}: {bound} is beyond what is told apart"
    for value in _values(schema):
        if isinstance(value, int) and _understood(value) != value:
            return f"the number {value} is beyond what is told apart"
    return _interval_problem(schema)


def _required(schema: Mapping[str, Any]) -> set[str]:
    required = schema.get("required")
    return {each for each in required if isinstance(each, str)} if _list(required) else set()


def _interval_problem(schema: Mapping[str, Any]) -> str | None:
    """llguidance takes the integer at the open end of an interval within two integers for a part
    of it, where a number may have a fraction."""
    if schema.get("type") == "integer":
        return None
    low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    uppers = [each for each in (schema.get("maximum"), high) if _number(each)]
    lowers = [each for each in (schema.get("minimum"), low) if _number(each)]
    if _number(low) and low == int(low) and any(each < low + 1 for each in uppers):
        return "exclusiveMinimum: not enforced where the maximum is less than 1 more"
    if _number(high) and high == int(high) and any(each > high - 1 for each in lowers):
        return "exclusiveMaximum: not enforced where the minimum is less than 1 less"
    return None


def _too_deep(root: Any) -> Excess | None:
    """Follows references as llguidance compiles them: each once, where it meets it first."""
    seen: set[int] = set()
    steps: list[tuple[list[str], Iterator[tuple[str, Any]]]] = [([], iter([("", root)]))]
    while steps:
        path, rest = steps[-1]
        for step, schema in rest:
            if isinstance(schema, Mapping) and id(schema) not in seen:
                seen.add(id(schema))
                here = [*path, step] if step else path
                if len(steps) > MAX_REFERENCE_DEPTH:
                    return here[:8], f"references lead deeper than {MAX_REFERENCE_DEPTH} schemas"
                steps.append((here, _followed(schema, root)))
                break
        else:
            steps.pop()
    return None


def _followed(schema: Mapping[str, Any], root: Any) -> Iterator[tuple[str, Any]]:
    if "$ref" in schema:
        yield "$ref", target(schema["$ref"], root)
    yield from subschemas(schema)


def _too_many_at_once(root: Any) -> Excess | None:
    counts: dict[int, int] = {}
    for path, schema in _all(root):
        if _combines(schema) and _at_once(schema, root, counts) > MAX_PATTERNS_AT_ONCE:
            return path, f"more than {MAX_PATTERNS_AT_ONCE} patterns may meet in one string"
    return None


def _endless(root: Any) -> Excess | None:
    path = endless(_all(root), root)
    return None if path is None else (path, "nothing but references in a circle")


def _at_once(schema: Any, root: Any, counts: dict[int, int]) -> int:
    """At most so many expressions meet at one place of a schema; its depth is bounded."""
    if not isinstance(schema, Mapping):
        return 0
    if id(schema) not in counts:
        counts[id(schema)] = 0  # where it is met again within itself
        own = ("pattern" in schema) + ("format" in schema)
        all_of = schema.get("allOf")
        parts = [target(schema["$ref"], root)] if "$ref" in schema else []
        parts += all_of if _list(all_of) else []
        inner = [each for step, each in subschemas(schema) if not step.startswith("allOf.")]
        most = max((_at_once(each, root, counts) for each in inner), default=0)
        counts[id(schema)] = max(own, most) + sum(_at_once(each, root, counts) for each in parts)
    return counts[id(schema)]


def _combines(schema: Any) -> bool:
    """Whether schemas meet in it."""
    return isinstance(schema, Mapping) and ("allOf" in schema or "$ref" in schema)


def _all(root: Any) -> Iterator[tuple[list[str], Any]]:
    waiting: list[tuple[list[str], Any]] = [([], root)]
    while waiting:
        path, schema = waiting.pop()
        yield path, schema
        waiting += [([*path, step], inner) for step, inner in subschemas(schema)]


def _texts(schema: Mapping[str, Any]) -> Iterator[str]:
    """Strings that an answer holds as they are."""
    for key in ("properties", "patternProperties"):
        if isinstance(found := schema.get(key), Mapping):
            yield from found
    yield from (each for each in _values(schema) if isinstance(each, str))


def _values(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Each string and number of `const` and `enum`, wherever it stands in them; keys too."""
    waiting = [schema[key] for key in _LITERAL if key in schema]
    while waiting:
        value = waiting.pop()
        match value:
            case dict():
                waiting += [*value, *value.values()]
            case list():
                waiting += value
            case _:
                yield value


def _patterns(schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(pattern := schema.get("pattern"), str):
        yield pattern
    if isinstance(found := schema.get("patternProperties"), Mapping):
        yield from found


def _digits(number: float) -> int:
    """A number without its decimal point and the zeros at its ends."""
    return int("".join(map(str, Decimal(repr(number)).normalize().as_tuple().digits)))


def _understood(number: float) -> float:
    """What llguidance takes a number for."""
    try:
        return max(_LEAST_INTEGER, min(_MOST_INTEGER, float(number)))
    except OverflowError:
        return math.inf


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
