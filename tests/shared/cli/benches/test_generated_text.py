"""What agents are told: sizes, what is alike and what is not."""

import itertools

import pytest

from shared.cli.benches.prompts import system_prompt, user_prompt


@pytest.mark.parametrize("characters", [1, 100, 5_000, 200_000])
def test_texts_have_the_size_that_is_asked_for(characters: int) -> None:
    assert len(system_prompt(characters)) == len(user_prompt(1, 1, characters)) == characters


def test_a_longer_system_prompt_begins_as_a_shorter_one() -> None:
    assert system_prompt(5_000).startswith(system_prompt(4_000))


def test_no_tool_is_described_twice() -> None:
    tools = system_prompt(200_000).splitlines()[4:-1]
    assert len(tools) == len(set(tools)) > 500


def test_every_turn_of_every_agent_is_another_text_and_each_time_the_same() -> None:
    turns = list(itertools.product(range(1, 11), range(1, 7)))
    texts = [user_prompt(agent, turn, 300) for agent, turn in turns]
    assert len(set(texts)) == len(turns)
    assert texts == [user_prompt(agent, turn, 300) for agent, turn in turns]
