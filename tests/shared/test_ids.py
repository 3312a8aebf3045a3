"""Names and ids."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ids import ID_PATTERN, NAME_PATTERN, is_name, name_from, new_boot_id, new_request_id


@given(st.text())
def test_any_text_gives_a_valid_name(text: str) -> None:
    assert is_name(name_from(text))


@given(st.from_regex(r"[A-Za-z0-9_]{1,64}", fullmatch=True))
def test_a_valid_name_stays_as_it_is(name: str) -> None:
    assert name_from(name) == name


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("Ada's Mac.local", "Ada-s-Mac"),
        ("mac-studio", "mac-studio"),
        ("", "node"),
        ("...", "node"),
        ("Büro", "B-ro"),
        ("x" * 80, "x" * 64),
    ],
)
def test_a_host_gives_the_nearest_name(host: str, name: str) -> None:
    assert name_from(host) == name


@pytest.mark.parametrize("text", ["", "a.b", "a b", "a*", ">", "é", "a\n", "x" * 65])
def test_what_cannot_be_one_token_of_a_subject_is_no_name(text: str) -> None:
    assert not is_name(text)


@pytest.mark.parametrize("text", ["a", "Z_9-", "x" * 64])
def test_letters_digits_dash_and_underscore_make_a_name(text: str) -> None:
    assert is_name(text)
    assert re.match(NAME_PATTERN, text)


def test_new_ids_are_allowed_and_differ() -> None:
    requests = {new_request_id() for _ in range(100)}
    boots = {new_boot_id() for _ in range(100)}
    assert len(requests) == len(boots) == 100
    assert all(re.match(ID_PATTERN, request) for request in requests)
    assert all(is_name(boot) for boot in boots)
