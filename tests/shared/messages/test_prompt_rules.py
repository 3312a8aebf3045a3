"""Lines that hide what is kept behind them: removed or moved, and nothing else is changed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.messages.prompt_rules import cleaned
from shared.settings.kv_cache import PromptLineRule

BILLING = PromptLineRule(pattern=r"x-billing: .*")
DATE = PromptLineRule(pattern=r"Today is .*", action="move", roles=["system", "user"])


def system(content: str, *rules: PromptLineRule, role: str = "system") -> str:
    (message,) = cleaned([{"role": role, "content": content}], rules)
    assert message["role"] == role
    return str(message["content"])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("x-billing: 7\nYou help.", "You help."),
        ("You help.\nx-billing: 7", "You help."),
        ("x-billing: 7", ""),
        ("x-billing: 7\n\nx-billing: 8\nYou help.", "\nYou help."),
        ("Say x-billing: 7\nYou help.", "Say x-billing: 7\nYou help."),
        ("Today is Monday.\nYou help.\nBe brief.", "You help.\nBe brief.\nToday is Monday."),
        ("x-billing: 7\nToday is Monday.\nYou help.", "You help.\nToday is Monday."),
        ("You help.", "You help."),
        ("", ""),
    ],
)
def test_matching_lines_go_or_move_to_the_end(content: str, expected: str) -> None:
    assert system(content, BILLING, DATE) == expected


def test_rules_hold_for_their_roles_alone() -> None:
    assert system("x-billing: 7\nHi", BILLING, role="user") == "x-billing: 7\nHi"
    assert system("Today is Monday.\nHi", DATE, role="user") == "Hi\nToday is Monday."


def test_what_was_moved_is_not_moved_by_the_next_request() -> None:
    once = system("Today is Monday.\nYou help.", DATE)
    assert system(once, DATE) == once


def test_far_down_and_in_very_long_lines_nobody_looks() -> None:
    far = "\n".join(["line"] * 500 + ["x-billing: 7"])
    assert system(far, BILLING) == far
    long = "x-billing: " + "7" * 3000
    assert system(long, BILLING) == long


@given(st.text(max_size=200))
def test_without_a_match_nothing_is_changed(content: str) -> None:
    rule = PromptLineRule(pattern="no such line in any of these texts")
    assert system(content, rule) == content
    assert cleaned([{"role": "user", "content": content}], []) == [
        {"role": "user", "content": content}
    ]


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"pattern": "("}, "not a regular expression"),
        ({"pattern": ".*"}, "empty line"),
        ({"pattern": ""}, "at least 1"),
        ({"pattern": "x" * 501}, "at most 500"),
        ({"pattern": "x", "action": "hide"}, "'remove' or 'move'"),
        ({"pattern": "x", "roles": []}, "at least 1"),
        ({"pattern": "x", "roles": ["tool"]}, "'system'"),
        ({"pattern": "x", "where": "top"}, "not permitted"),
    ],
)
def test_bad_rules_are_refused_with_the_reason(rule: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        PromptLineRule.model_validate(rule)
