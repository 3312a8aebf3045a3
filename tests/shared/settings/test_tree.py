"""What the settings mean for a worker's models."""

from typing import Any

import pytest
from pydantic import ValidationError

from shared.settings import ClusterSettings
from shared.settings.base import SettingsSection


def settings(**values: Any) -> ClusterSettings:
    return ClusterSettings(**values)


TWO_SKILLS = {"chat": ["a", "b"], "code": ["c", "a"]}


@pytest.mark.parametrize(
    ("values", "served"),
    [
        ({}, ["demo"]),
        ({"skills": TWO_SKILLS}, ["a", "b", "c"]),
        ({"skills": TWO_SKILLS, "models": {"d": {"path": "/d"}}}, ["a", "b", "c", "d"]),
        ({"skills": TWO_SKILLS, "worker": {"models": ["b"]}}, ["b"]),
    ],
)
def test_a_worker_serves_all_models_that_are_named_unless_it_names_its_own(
    values: dict[str, Any], served: list[str]
) -> None:
    assert settings(**values).served_models == served


@pytest.mark.parametrize(
    ("worker", "warmed"),
    [
        ({}, ["a", "c"]),
        ({"models": ["b"]}, ["b"]),
        ({"pre_warming": {"enabled": False}}, []),
        ({"pre_warming": {"models": []}}, []),
        (
            {
                "pre_warming": {
                    "models": [
                        {"model": "a", "priority": "low"},
                        {"model": "b"},
                        {"model": "c", "priority": "high"},
                        {"model": "d"},
                    ]
                }
            },
            ["c", "b", "d", "a"],
        ),
    ],
)
def test_models_are_warmed_by_priority_and_by_default_the_first_of_each_skill(
    worker: dict[str, Any], warmed: list[str]
) -> None:
    assert settings(skills=TWO_SKILLS, worker=worker).pre_warmed_models == warmed


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(1, 1), ("90", 90), ("90s", 90), ("30m", 1800), ("12h", 43_200), (" 30d ", 2_592_000)],
)
def test_an_age_is_in_seconds_or_has_its_unit(given: int | str, seconds: int) -> None:
    kept = settings(gateway={"responses": {"max_age": given}}).gateway.responses
    assert kept.max_age == seconds


@pytest.mark.parametrize("given", [0, -1, "", "d", "1w", "1.5h", "-1d", "999999999d", None, [1]])
def test_what_is_no_age_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError, match="max_age"):
        settings(gateway={"responses": {"max_age": given}})


def test_every_section_is_frozen_and_refuses_unknown_keys() -> None:
    def sections(kind: type[SettingsSection]) -> list[type[SettingsSection]]:
        return [found for child in kind.__subclasses__() for found in (child, *sections(child))]

    assert len(sections(SettingsSection)) >= 20
    for kind in sections(SettingsSection):
        assert kind.model_config.get("frozen") is True
        assert kind.model_config.get("extra") == "forbid"
