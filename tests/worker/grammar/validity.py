"""Whether a text is JSON of a schema, by another judge: `jsonschema`."""

import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend, validator_for

Schema = Mapping[str, Any] | bool


def invalidity(text: str, schema: Schema) -> str | None:
    """What is wrong with a text; None where it is valid."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_number)
    except ValueError as error:
        return f"no JSON: {error}"
    return value_invalidity(value, schema)


def value_invalidity(value: Any, schema: Schema) -> str | None:
    try:
        error = _first_error(value, schema)
    except RecursionError:  # a schema that refers to itself alone says nothing
        return None
    return f"{'.'.join(map(str, error.absolute_path))}: {error.message}" if error else None


def is_surely_valid(value: Any, schema: Schema) -> bool:
    """Also where a schema that refers to itself alone is asked."""
    try:
        return _first_error(value, schema) is None
    except RecursionError:
        return False


def _first_error(value: Any, schema: Schema) -> ValidationError | None:
    dialect = validator_for(schema, default=Draft202012Validator)
    judge = extend(dialect, {"multipleOf": _multiple_of})  # type: ignore[no-untyped-call]
    return next(judge(schema, format_checker=dialect.FORMAT_CHECKER).iter_errors(value), None)


def _multiple_of(
    _: Any, divisor: float, value: Any, __: Any
) -> Iterator[ValidationError]:  # in decimals: 0.3 is a multiple of 0.1
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and Fraction(repr(value)) % Fraction(repr(divisor)) != 0:
        yield ValidationError(f"{value} is no multiple of {divisor}")


def _number(text: str) -> float:
    """Beyond what a float holds, its whole part."""
    number = float(text)
    return int(Decimal(text)) if math.isinf(number) else number


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
