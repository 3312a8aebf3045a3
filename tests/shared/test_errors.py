"""The error tree and the table of codes."""

from collections.abc import Iterator

import pytest

from shared import errors
from shared.errors import ERROR_CODES, ClusterError, DecodeError, RequestError, Unavailable


def subclasses(kind: type[ClusterError]) -> Iterator[type[ClusterError]]:
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


def test_every_class_of_the_tree_has_a_code_of_the_table_and_stands_in_the_drawing() -> None:
    kinds = [kind for kind in subclasses(ClusterError) if kind.__module__ == errors.__name__]
    assert len(kinds) >= 13
    assert {kind.code for kind in kinds} <= set(ERROR_CODES)
    assert [kind.__name__ for kind in kinds if kind.__name__ not in str(errors.__doc__)] == []


@pytest.mark.parametrize("code", ERROR_CODES)
def test_an_error_is_retryable_as_its_code_says(code: str) -> None:
    error = RequestError("x", code=code, param="p", retry_after_ms=5)
    assert error.retryable is ERROR_CODES[code].retryable
    assert (error.message, error.code, error.param, error.retry_after_ms) == ("x", code, "p", 5)
    assert ERROR_CODES[code].meaning.endswith(".")


def test_without_a_code_the_class_gives_it() -> None:
    assert RequestError("x").code == "invalid_request"
    assert Unavailable("x").retryable
    assert DecodeError("x", b"bytes").payload == b"bytes"
