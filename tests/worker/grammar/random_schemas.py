"""Random JSON schemas, for hypothesis: what clients write, and what they should not."""

from typing import Any

from hypothesis import strategies as st

Schemas = st.SearchStrategy[dict[str, Any]]

_NAMES = st.sampled_from(
    [
        "a", "b", "name", "first name", "ß", "e\u0301", "", "\U0001f600", '"', "\\", "\na", "\x00",
        "</tool_call>", "<|im_end|>", "<think>", "x-guidance", "$ref", "é" * 40,
    ]
)  # fmt: skip
"""None ends with a newline: before that Python's `$` matches, too."""
_TEXTS = st.one_of(
    _NAMES, st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0x1FFFF), max_size=6)
)
_NUMBERS = st.one_of(
    st.integers(-20, 20),
    st.integers(-(2**53), 2**53),
    st.floats(-100, 100).map(lambda number: round(number, 2)),
)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_NAMES, inner, max_size=3)
    ),
    max_leaves=6,
)
_PATTERNS = st.sampled_from(
    [
        "^a",
        "b$",
        "^[a-z]{2,4}$",
        "a|b",
        "^(x.?)*$",
        r"^\d+$",
        "[a-z_]",
        "^.{3}$",
        "[^a]",
        "^$",
        "é+",
        '^[^"]*$',
        r"^[^\\,]+$",
    ]
)
_FORMATS = st.sampled_from(["ipv4", "ipv6", "uuid", "email", "unheard-of"])
"""Not dates: llguidance has a 29th of February in every year."""
_SMALL = st.integers(0, 4)


def _with(fixed: dict[str, Any], /, **optional: st.SearchStrategy[Any]) -> Schemas:
    kept = {key: st.just(value) for key, value in fixed.items()}
    return st.fixed_dictionaries(kept, optional=optional)


_STRINGS = _with(
    {"type": "string"}, minLength=_SMALL, maxLength=_SMALL, pattern=_PATTERNS, format=_FORMATS
)
_PLAIN = st.one_of(
    _with({"type": "null"}),
    _with({"type": "boolean"}),
    _with(
        {"type": "integer"},
        minimum=_NUMBERS,
        maximum=_NUMBERS,
        exclusiveMinimum=_NUMBERS,
        multipleOf=st.integers(1, 12),
    ),
    _with(
        {"type": "number"},
        minimum=_NUMBERS,
        exclusiveMaximum=_NUMBERS,
        exclusiveMinimum=st.sampled_from([0, 1, -0.5]),
        multipleOf=st.sampled_from([1, 0.5, 0.01]),
    ),
    _STRINGS,
    _STRINGS,
    _with({}, const=_VALUES),
    _with({}, enum=st.lists(_VALUES, min_size=1, max_size=4)),
    _with({"type": ["string", "null"]}, maxLength=_SMALL),
    st.just({}),
)
_REFERENCES = st.sampled_from(["#", "#/$defs/one", "#/$defs/two", "#/$defs/none"]).map(
    lambda place: {"$ref": place}
)


def _objects(inner: Schemas) -> Schemas:
    return st.dictionaries(_NAMES, inner, max_size=4).flatmap(
        lambda properties: _with(
            {"type": "object", "properties": properties},
            required=st.lists(
                st.sampled_from([*properties, "more"]), unique=True, max_size=len(properties) + 1
            ),
            additionalProperties=st.one_of(st.booleans(), inner),
            patternProperties=st.dictionaries(_PATTERNS, inner, max_size=1),
            minProperties=_SMALL,
            maxProperties=_SMALL,
        )
    )


def _deeper(inner: Schemas) -> Schemas:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        _objects(inner),
        _with(
            {"type": "array"},
            items=inner,
            prefixItems=several,
            minItems=_SMALL,
            maxItems=_SMALL,
            uniqueItems=st.sampled_from([False] * 6 + [True]),
        ),
        _with({}, anyOf=several),
        _with({}, oneOf=several),
        _with({}, allOf=several, type=st.sampled_from(["object", "string", "integer"])),
        inner.map(lambda schema: {**schema, "description": "x", "x-guidance": {"lenient": True}}),
        st.tuples(inner, st.integers(0, 9)).map(
            lambda drawn: {"not": drawn[0]} if drawn[1] == 0 else drawn[0]
        ),
    )


_INNER = st.recursive(st.one_of(_PLAIN, _PLAIN, _REFERENCES), _deeper, max_leaves=8)
SCHEMAS: Schemas = st.builds(
    lambda schema, one, two: {**schema, "$defs": {"one": one, "two": two}}, _INNER, _INNER, _PLAIN
)
