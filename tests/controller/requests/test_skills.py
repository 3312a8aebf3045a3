"""Which models serve a skill."""

import pytest

from controller.requests.skills import models_for_dispatch, models_of
from shared.errors import RequestError
from shared.ids import ModelId, RequestId, SkillName
from shared.messages.dispatch import Dispatch
from shared.messages.request import InferenceRequest
from tests.controller.values import ADA, CHAT, DEMO

BEST = ModelId("best")
SKILLS = {CHAT: [BEST, DEMO], SkillName("embed"): [DEMO]}


def test_any_of_its_models_serves_a_skill_in_the_order_of_preference() -> None:
    assert models_of(CHAT, None, SKILLS) == [BEST, DEMO]


def test_the_model_that_is_named_is_the_only_one() -> None:
    assert models_of(CHAT, "demo", SKILLS) == [DEMO]


@pytest.mark.parametrize(
    ("skill", "named", "code", "param", "words"),
    [
        ("draw", None, "unknown_skill", None, "there are: chat, embed"),
        ("embed", "best", "unknown_model", "model", "it has: demo"),
    ],
)
def test_what_there_is_not_is_an_error_that_says_what_there_is(
    skill: str, named: str | None, code: str, param: str | None, words: str
) -> None:
    with pytest.raises(RequestError) as caught:
        models_of(SkillName(skill), named, SKILLS)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert words in caught.value.message


def told(skill: str = "chat", model: str | None = None) -> Dispatch:
    return Dispatch(
        request_id=RequestId("r"), client=ADA, skill=SkillName(skill), model=DEMO, attempt=1,
        inboxes=[], seed=1, elapsed_ms=0, request=InferenceRequest(prompt="x", model=model),
    )  # fmt: skip


def test_what_somebody_else_took_may_be_served_by_any_that_serves_its_skill() -> None:
    assert models_for_dispatch(told(), SKILLS) == [BEST, DEMO]
    assert models_for_dispatch(told(model="best"), SKILLS) == [BEST]


@pytest.mark.parametrize("taken", [told("draw"), told(model="other")])
def test_where_its_skill_is_no_more_the_model_serves_it_that_did(taken: Dispatch) -> None:
    assert models_for_dispatch(taken, SKILLS) == [DEMO]


def test_the_models_of_a_request_are_its_own() -> None:
    models_for_dispatch(told(), SKILLS).clear()
    assert SKILLS[CHAT] == [BEST, DEMO]
