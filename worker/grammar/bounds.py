"""Limits of JSON schemas: llguidance would take too much time, memory or stack for a schema beyond
them, or would not enforce it exactly.

The limits were measured with a vocabulary of 49,152 tokens: a schema within them compiles within
tens of milliseconds, and delays no step by more than 5 ms. `benchmarks/schemas.py` measures both.
"""

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeGuard

from worker.grammar import regex
from worker.grammar.references import UNRESOLVED, find_circular, target
from worker.grammar.schemas import subschemas

MAX_LITERAL_CHARACTERS = 4096
MAX_OPTIONAL_PROPERTIES = 350
MAX_PATTERN_PROPERTIES = 64
MAX_PATTERNS_AT_ONCE = 10
"""Regular expressions that one string must match: the cost is exponential in their number."""
MAX_REFERENCE_DEPTH = 256
"""Depth of nested schemas and references: llguidance compiles them by recursion, and 1,000 objects
fill a stack of 8 MB."""
MAX_UNUSUAL_REFERENCES = 64
"""References to anchors and identifiers, which this module does not follow."""

_LEAST_INTEGER, _MOST_INTEGER = -(2**63), 2**63 - 1
"""The range of llguidance's integers, to which it converts numbers from floating point."""
_MAX_LENGTH = 2**32 - 1
_MAX_DIVISOR = 10_000
_LITERAL = ("const", "enum")
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_LENGTHS = ("minLength", "maxLength")

Excess = tuple[list[str], str]
"""The path to a schema, and what is wrong with the schema."""


def find_excess(root: Any, *, lenient: bool = False) -> Excess | None:
    """Return the first problem of a cleaned schema; `lenient` accepts what would be enforced
    inexactly."""
    unusual = 0
    seen: set[int] = set()
    waiting: list[tuple[list[str], Any]] = [([], root)]
    referred: list[tuple[list[str], Any]] = []  # last, as most of these are subschemas, too
    while waiting or referred:
        is_referred = not waiting
        path, schema = waiting.pop() if waiting else referred.pop()
        if not isinstance(schema, Mapping) or id(schema) in seen:
            continue
        seen.add(id(schema))
        problem = _excessive_cost(schema) or (None if lenient else _inexactness(schema))
        if problem is not None:
            return path, problem
        if "$ref" in schema:
            found = target(schema["$ref"], root)
            unusual += found is UNRESOLVED
            if unusual > MAX_UNUSUAL_REFERENCES:
                return path, f"more than {MAX_UNUSUAL_REFERENCES} references that are no pointers"
            referred.append((path, found))
        if is_referred:  # only the path of the reference is known
            referred += [(path, inner) for _, inner in subschemas(schema)]
        else:
            waiting += reversed([([*path, step], inner) for step, inner in subschemas(schema)])
    return _too_deep(root) or _too_many_patterns(root) or _circular(root)


def _excessive_cost(schema: Mapping[str, Any]) -> str | None:
    """Return why one schema, without its subschemas, would cost too much."""
    for text in _literal_strings(schema):
        if len(text) > MAX_LITERAL_CHARACTERS:
            return f"a string of {len(text)} characters; the maximum is {MAX_LITERAL_CHARACTERS}"
    for pattern in _patterns(schema):
        if (problem := regex.find_problem(pattern)) is not None:
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
    """Return why one schema, without its subschemas, would not be enforced exactly."""
    for text in _literal_strings(schema):
        if (found := regex.NEVER_WRITTEN.search(text)) is not None:
            return f"the character U+{ord(found.group()):04X} is never written"
    for pattern in _patterns(schema):
        if (character := regex.find_never_written(pattern)) is not None:
            return f"pattern: the character U+{ord(character):04X} is never written"
    patterned = schema.get("patternProperties")
    if isinstance(patterned, Mapping):
        if any(regex.within_json(pattern) != pattern for pattern in patterned):
            return 'patternProperties: a class without `"` or `\\` is not enforced for names'
    least = schema.get("minProperties")
    if _number(least) and least > 1 + len(_required(schema)):
        return "minProperties: not enforced beyond one more than `required`, as names may repeat"
    for key in _LOWER:
        if _number(bound := schema.get(key)) and _as_llguidance(bound) < bound:
            return f"{key}: {bound} is beyond the range of exact numbers"
    for key in _UPPER:
        if _number(bound := schema.get(key)) and _as_llguidance(bound) > bound:
            return f"{key}: {bound} is beyond the range of exact numbers"
    for value in _values(schema):
        if isinstance(value, int) and _as_llguidance(value) != value:
            return f"the number {value} is beyond the range of exact numbers"
    return _interval_problem(schema)


def _required(schema: Mapping[str, Any]) -> set[str]:
    required = schema.get("required")
    return {each for each in required if isinstance(each, str)} if _list(required) else set()


def _interval_problem(schema: Mapping[str, Any]) -> str | None:
    """Return why an interval would not be enforced exactly: for an interval between two adjacent
    integers, llguidance allows the integer at an excluded end if numbers may have fractions."""
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
    """Follow references in llguidance's order: each schema once, where it is reached first."""
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


def _too_many_patterns(root: Any) -> Excess | None:
    counts: dict[int, int] = {}
    for path, schema in _all(root):
        if _combines(schema) and _max_patterns_at_once(schema, root, counts) > MAX_PATTERNS_AT_ONCE:
            return path, f"more than {MAX_PATTERNS_AT_ONCE} patterns may apply to one string"
    return None


def _circular(root: Any) -> Excess | None:
    path = find_circular(_all(root), root)
    return None if path is None else (path, "only circular references")


def _max_patterns_at_once(schema: Any, root: Any, counts: dict[int, int]) -> int:
    """Return an upper bound of the patterns that apply to one string of a schema. Recursive; the
    depth of the schema is checked before."""
    if not isinstance(schema, Mapping):
        return 0
    if id(schema) not in counts:
        counts[id(schema)] = 0  # for references from within the schema
        own = ("pattern" in schema) + ("format" in schema)
        all_of = schema.get("allOf")
        parts = [target(schema["$ref"], root)] if "$ref" in schema else []
        parts += all_of if _list(all_of) else []
        inner = [each for step, each in subschemas(schema) if not step.startswith("allOf.")]
        most = max((_max_patterns_at_once(each, root, counts) for each in inner), default=0)
        combined = sum(_max_patterns_at_once(each, root, counts) for each in parts)
        counts[id(schema)] = max(own, most) + combined
    return counts[id(schema)]


def _combines(schema: Any) -> bool:
    """Whether several schemas may apply to one value."""
    return isinstance(schema, Mapping) and ("allOf" in schema or "$ref" in schema)


def _all(root: Any) -> Iterator[tuple[list[str], Any]]:
    waiting: list[tuple[list[str], Any]] = [([], root)]
    while waiting:
        path, schema = waiting.pop()
        yield path, schema
        waiting += [([*path, step], inner) for step, inner in subschemas(schema)]


def _literal_strings(schema: Mapping[str, Any]) -> Iterator[str]:
    """Strings of a schema that an answer repeats literally, and patterns of property names."""
    for key in ("properties", "patternProperties"):
        if isinstance(found := schema.get(key), Mapping):
            yield from found
    yield from (each for each in _values(schema) if isinstance(each, str))


def _values(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Strings and numbers of `const` and `enum` at any depth, keys included."""
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
    """Return a number's digits as an integer, without decimal point and trailing zeros."""
    return int("".join(map(str, Decimal(repr(number)).normalize().as_tuple().digits)))


def _as_llguidance(number: float) -> float:
    """Return the value that a number has in llguidance."""
    try:
        return max(_LEAST_INTEGER, min(_MOST_INTEGER, float(number)))
    except OverflowError:
        return math.inf


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
