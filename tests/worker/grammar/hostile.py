"""Schemas, expressions and grammars that nobody needs: bombs, cycles, markers in names."""

from collections.abc import Callable
from functools import reduce
from typing import Any

_INTEGER = {"type": "integer"}


def an_object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def nested(depth: int, wrap: Callable[[Any], Any], inner: Any = _INTEGER) -> Any:
    return reduce(lambda schema, _: wrap(schema), range(depth), inner)


def chain(length: int, link: Callable[[dict[str, str], int], Any]) -> dict[str, Any]:
    """Definitions, each of which refers to the next."""
    links = {f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}, n) for n in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {"type": "object"}}}


def _optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": {} for n in range(count)}}


MARKERS = [
    "</tool_call>", "<tool_call>", "<|im_end|>", "<|im_start|>", "<think>", "</think>",
    "\\", '"', '{"', "}", "\n\t", "", "/", "e\u0301", "\u2028", "\U0001f600", "%json",
    "\uffff", "@answer", "x-guidance", "<[0]>", "\r\n",
]  # fmt: skip

_GUIDANCE = {
    "x-guidance": {
        "lark_grammar": 'start: "HACK"',
        "whitespace_pattern": "HACK",
        "item_separator": "HACK",
        "key_separator": "HACK",
        "json_allowed_escapes": "u",
        "lenient": True,
        "coerce_one_of": True,
    }
}

_CYCLE = {"$ref": "#/$defs/a"}

ENFORCED: dict[str, Any] = {
    "arrays in arrays": nested(30, lambda inner: {"type": "array", "items": inner}),
    "objects in objects": nested(15, lambda inner: an_object(a=inner)),
    "alternatives in alternatives": nested(15, lambda inner: {"anyOf": [inner, {"type": "null"}]}),
    "references that double in properties": chain(40, lambda to, n: an_object(x=to, y=to)),
    "references that double in alternatives": chain(40, lambda to, n: {"anyOf": [to, to]}),
    "a chain of references": chain(200, lambda to, n: to),
    "a chain of objects": chain(80, lambda to, n: an_object(a=to)),
    "a product of alternatives": {
        "allOf": [
            {
                "anyOf": [
                    {"type": "object", "properties": {f"{key}{n}": _INTEGER}, "required": [key]}
                    for key in "ab"
                ]
            }
            for n in range(6)
        ]
    },
    "many integers": {"enum": list(range(10_000))},
    "many strings": {"enum": [f"{n:020}" for n in range(9000)]},
    "many alternatives": {"anyOf": [{"const": f"v{n}"} for n in range(5000)]},
    "long strings": {"enum": [client_message * 4000 for client_message in "abcdefgh"]},
    "many properties": _optional(350),
    "a list of a thousand million": {"type": "array", "items": _INTEGER, "minItems": 10**9},
    "a text of a thousand million": {"type": "string", "minLength": 10**9},
    "any text, but not too long": {"type": "string", "maxLength": 2**31},
    "lists in lists": nested(
        8, lambda inner: {"type": "array", "items": inner, "minItems": 500, "maxItems": 1000}
    ),
    "repetitions in repetitions": {"type": "string", "pattern": "(a{1,1000}){1,1000}"},
    "any text and a letter, 50 times": {"type": "string", "pattern": "(.*a){50}"},
    "an expression for addresses": {
        "type": "string",
        "maxLength": 254,
        "minLength": 5,
        "pattern": r"^[^@^\s]+@[^@^\.^\s]+(\.[^@^\.^\s]*)*.gov.uk",
    },
    "a list of itself, in time": {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, _INTEGER]},
    "an object without an end": {"$ref": "#/$defs/a", "$defs": {"a": an_object(a=_CYCLE)}},
    "markers for names and values": an_object(**{text: {"enum": [text]} for text in MARKERS}),
    "markers for other names": {
        "type": "object",
        "properties": {text: {"const": text} for text in MARKERS},
        "additionalProperties": _INTEGER,
    },
    "a constant of markers": {"const": {text: [text] for text in MARKERS}},
    "options at every depth": {
        **_GUIDANCE,
        **an_object(
            a={**_GUIDANCE, **_INTEGER},
            l={"type": "array", "items": {**_GUIDANCE, "type": "null"}, "minItems": 2},
            r={"$ref": "#/$defs/d"},
            b={"anyOf": [{**_GUIDANCE, "const": 1}]},
            c={"allOf": [{**_GUIDANCE, "type": "null"}]},
            u={"$ref": "#/unknown"},
        ),
        "$defs": {"d": {**_GUIDANCE, "type": "boolean"}},
        "unknown": {**_GUIDANCE, "enum": [_GUIDANCE]},
    },
    "integers at the end of 64 bits": {"type": "integer", "maximum": 2**63 - 1},
    "a large divisor": {"type": "integer", "multipleOf": 9973},
    "everything": True,
}
"""What is enforced."""

REFUSED: dict[str, tuple[Any, str]] = {
    "objects in objects without an end": (chain(3000, lambda to, n: an_object(a=to)), ""),
    "a long chain of references": (chain(5000, lambda to, n: to), ".$ref"),
    "a long chain of alternatives": (
        chain(3000, lambda to, n: {"anyOf": [to, {"const": n}]}), ".$ref"
    ),
    "a long chain by names": (
        {
            "$ref": "#a0",
            "$defs": {
                f"d{n}": {"$anchor": f"a{n}", "$ref": f"#a{n + 1}"} for n in range(3000)
            },
        },
        "",
    ),
    "itself": ({"$ref": "#"}, ""),
    "itself by a definition": ({**_CYCLE, "$defs": {"a": _CYCLE}}, ".$defs.a"),
    "one another": ({**_CYCLE, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": _CYCLE}}, ".$defs.a"),
    "itself and more": (
        {**_CYCLE, "$defs": {"a": {"allOf": [_CYCLE, _INTEGER]}}}, ".$defs.a.allOf.0"
    ),
    "another machine's": (
        {"properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}}, ".properties.a"
    ),
    "a file": ({"items": {"$ref": "file:///etc/passwd"}}, ".items"),
    "another machine's dialect": ({"$schema": "http://127.0.0.1:9/x", "type": "object"}, ""),
    "nowhere": ({"properties": {"/~%é": {"$ref": "#/$defs/no"}}}, ".properties./~%é"),
    "many patterns at once": (
        {"items": {"allOf": [{"type": "string", "pattern": f"a.*{n}"} for n in range(100)]}},
        ".items",
    ),
    "many patterns for names": (
        {"type": "object", "patternProperties": {f"^p{n}_": {} for n in range(500)}}, ""
    ),
    "a product too large": (
        {"allOf": [{"anyOf": [{"enum": list(range(n, 90))} for n in range(9)]} for _ in range(9)]},
        "",
    ),
    "a huge divisor": ({"properties": {"a": {"multipleOf": 99_999_989}}}, ".properties.a"),
    "a huge string": ({"items": {"const": "a" * 20_000}}, ".items"),
    "a huge expression": ({"items": {"pattern": "a{1000000}"}}, ".items"),
    "an expression of nothing": (
        an_object(a={"type": "string", "pattern": r"[^\x00-\x{10FFFF}]"}), ".properties.a"
    ),
    "half an expression": ({"items": {"pattern": "a\\"}}, ".items"),
    "a look ahead": ({"items": {"pattern": "(?=a)b"}}, ".items"),
    "too many properties": ({"properties": {"a": _optional(6000)}}, ".properties.a"),
    "a text longer than can be": ({"items": {"type": "string", "maxLength": 2**40}}, ".items"),
    "an integer beyond 2^53": ({"items": {"const": 2**53 + 1}}, ".items"),
    "an integer beyond 2^63": ({"items": {"minimum": 2**64}}, ".items"),
    "just above 0": ({"items": {"exclusiveMinimum": 0, "maximum": 0.5}}, ".items"),
    "names that may come twice": ({"items": {"type": "object", "minProperties": 2}}, ".items"),
    "a control character": ({"items": {"enum": ["a\x00"]}}, ".items"),
    "a control character elsewhere": (
        {
            "properties": {"a": {"$ref": "#/more"}, "b": {"$ref": "#/$defs/b"}},
            "$defs": {"b": an_object(x={"const": 1})},
            "more": {"items": {"const": "\x00"}},
        },
        ".properties.a",
    ),
    "a control character in a definition": (
        {"items": {"$ref": "#/$defs/b"}, "$defs": {"b": {"items": {"const": "\x00"}}}},
        ".$defs.b.items",
    ),
    "the last control character": ({"items": {"const": "0\x7f"}}, ".items"),
    "a control character in an expression": (
        {"items": {"type": "string", "pattern": "^a\x01$"}}, ".items"
    ),
    "an escaped one": ({"items": {"type": "string", "pattern": r"^a\x7f?$"}}, ".items"),
    "a code that is none": ({"items": {"type": "string", "pattern": r"^\x{zz}$"}}, ".items"),
    "a code below 0": ({"items": {"type": "string", "pattern": r"^\x{-1}$"}}, ".items"),
    "one with four digits": ({"items": {"type": "string", "pattern": r"^a\u007F"}}, ".items"),
    "a class of one": ({"items": {"type": "string", "pattern": "^a[\x7f]$"}}, ".items"),
    "one for names": ({"type": "object", "patternProperties": {r"^\v": {}}}, ""),
    "itself, behind another": (
        {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/a"}}}, ".$defs.a"
    ),
    "itself by another": (
        {"properties": {"x": {"$ref": "#/$defs/a"}},
         "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]},
                   "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
        ".properties.x",
    ),
    "itself at a place of no schema": (
        {"properties": {"x": {"$ref": "#/more"}}, "more": {"$ref": "#/more"}}, ".properties.x"
    ),
    "a cycle of 200": (
        {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{(n + 1) % 200}"} for n in range(200)},
         "items": {"type": "null"}},
        ".$defs.d",
    ),
    "a noncharacter": ({"items": {"const": {"\ufdd0": 1}}}, ".items"),
    "options to be lenient": ({"x-guidance": {"lenient": True}, "not": {"type": "string"}}, ""),
    "options to coerce": (
        {"x-guidance": {"coerce_one_of": True}, "oneOf": [_INTEGER, {"type": "number"}]}, ""
    ),
    "a type that is none": ({"properties": {"a": {"type": 5}}}, ".properties.a"),
    "no schema": ({"properties": {"a": 5}}, ".properties.a"),
    "nothing": (False, ""),
}  # fmt: skip
"""What is refused, and the place that is named."""

EXPRESSIONS = {
    "repetitions in repetitions": "(a{1,1000}){1,1000}",
    "any text and a letter, 50 times": "(.*a){50}",
    "catastrophic elsewhere": "(x+x+)+y",
    "many words": "|".join(f"{n:05}" for n in range(1300)),
    "ends of lines and slashes": 'a/ "b" | /c\n//',
    "what might end an expression": "/ | start: /b",
    "what may come 500 times": r"\p{L}{1,500}",
}
REFUSED_EXPRESSIONS = {
    "a million": "a{1000000}",
    "a number of 5,000 digits": "a{" + "9" * 5000 + "}",
    "a million in two steps": "(ab{1000}){1000}",
    "200,000 characters": "a" * 200_000,
    "classes": "[a-z]" * 50_000,
    "6,000 brackets": "(" * 3000 + "a" + ")" * 3000,
    "a look behind": "(?<!a)b",
    "a word's end": r"a\b",
    "what came before": r"(a)\1",
    "half of one": "a\\",
    "an open class": "[",
}

GRAMMARS = {
    "recursion to the left": 'start: start "a" | "a"',
    "ambiguity": 'start: a\na: a a | "x"',
    "nothing, any number of times": 'start: (""*)* "b"',
    "imports": "%import common.INT\nstart: INT",
    "spaces between": 'start: "a" "b"\n%ignore / {0,3}/',
    "itself": 'start: "a" @answer | "b"',
    "palindromes": 'start: p\np: "a" p "a" | "b" p "b" | "a" | "b"',
    "terminals in terminals": 'start: A\nA: "a" B{3}\nB: /b|c/ ~ 2..3',
}
REFUSED_GRAMMARS = {
    "itself alone": "start: start",
    "no start": 'a: "b"',
    "half of one": "start: (((",
    "no such rule": "start: nowhere",
    "another grammar": "start: @nowhere",
    "an import of something": "%import os.system\nstart: system",
    "JSON": 'start: %json {"x-guidance": {"whitespace_pattern": "HACK"}}',
    "options": '%llguidance {"no_forcing": true}\nstart: "a"',
    "another kind of expression": 'start: %regex {"substring_chars": "abc"}',
    "a control token": 'start: <|im_end|> "a"',
    "an unknown token": "start: <[999999]>",
    "brackets": "start: " + "(" * 60_000 + '"a"' + ")" * 60_000,
    "brackets in an expression": "start: /" + "(" * 60_000 + "a" + ")" * 60_000 + "/",
    "a chain of rules": "start: r0\n" + "\n".join(f'r{n}: "a" r{n + 1}' for n in range(8000)),
    "a chain of terminals": "start: T0\n" + "\n".join(f'T{n}: "a" T{n + 1}' for n in range(900)),
    "terminals that double": "start: T0\n"
    + "\n".join(f"T{n}: T{n + 1} T{n + 1}" for n in range(24)) + '\nT24: "c"',
    "rules that double": "start: r0\n" + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(60))
    + '\nr60: "c"',
    "a terminal in itself": 'start: A\nA: "a" B\nB: "b" A',
    "a million": 'start: "a"{1000000}',
    "millions of millions": "start: ((a{1000}){1000}){1000}\na: \"a\"",
    "all at once": "start: A\nA: " + " & ".join(f"/.*x.*y{n}/" for n in range(30)),
    "a control character": 'start: "a\x00b"',
}  # fmt: skip

CHOICES = {
    "markers": [text for text in MARKERS if text],
    "long ones": ["a" * 4096, "a" * 4095 + "b"],
    "prefixes of one another": ["a" * length for length in range(1, 1025)],
}
