"""Whether a text is JSON of a schema, by another judge: `jsonschema`."""

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend, validator_for

Schema = Mapping[str, Any] | bool


def invalidity(text: str, schema: Schema) -> str | None:
    """What is wrong with a text; None where it is valid."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        return f"no JSON: {error}"
    return value_invalidity(value, schema)


def value_invalidity(value: Any, schema: Schema) -> str | None:
    dialect = validator_for(schema, default=Draft202012Validator)
    judge = extend(dialect, {"multipleOf": _multiple_of})  # type: ignore[no-untyped-call]
    try:
        error = next(judge(schema, format_checker=dialect.FORMAT_CHECKER).iter_errors(value), None)
    except RecursionError:  # a schema that refers to itself alone says nothing
        return None
    return f"{'.'.join(map(str, error.absolute_path))}: {error.message}" if error else None


def _multiple_of(
    _: Any, divisor: float, value: Any, __: Any
) -> Iterator[ValidationError]:  # in decimals: 0.3 is a multiple of 0.1
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and Fraction(repr(value)) % Fraction(repr(divisor)) != 0:
        yield ValidationError(f"{value} is no multiple of {divisor}")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
