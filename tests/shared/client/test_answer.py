"""An answer while it comes."""

from typing import Any

from shared.client import Completion
from shared.client.answer import PartialChoice
from shared.ids import RequestId
from shared.messages.conversation import Message
from shared.messages.request import SentCharacters
from shared.messages.stream import ChoiceOutput, Timings, Usage


def call(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    """A piece of a call, the first one if it has a name."""
    if name is None:
        return {"index": index, "function": {"arguments": arguments}}
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": f"call_{index}", "type": "function", "function": function}


OUTPUTS = [
    ChoiceOutput(0, 0, [1], "", reasoning="Hm, "),
    ChoiceOutput(0, 1, [2, 3], "Let me ", reasoning="2 < 3."),
    ChoiceOutput(0, 3, [4], "see.", tool_calls=[call(0, "", "now")]),
    ChoiceOutput(0, 4, [5], "", tool_calls=[call(0, "{}"), call(1, '{"city"', "get_weather")]),
    ChoiceOutput(0, 5, [6], "", tool_calls=[call(1, ': "Rome"}')], finish_reason="tool_calls"),
]
CALLS = [
    {"id": "call_0", "type": "function", "function": {"name": "now", "arguments": "{}"}},
    {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    },
]


def completion(*outputs: ChoiceOutput) -> Completion:
    choices = (ChoiceOutput.joined(outputs),)
    return Completion(RequestId("r"), None, choices, Usage(1, 0, 6, 3), Timings(0, 0, 0, 0))


def test_each_channel_is_there_as_far_as_it_has_come() -> None:
    answer = PartialChoice()
    seen = []
    for output in OUTPUTS:
        answer.add(output)
        arguments = [each["function"]["arguments"] for each in answer.tool_calls]
        seen.append((answer.reasoning, answer.text, arguments, answer.finish_reason))
    assert seen == [
        ("Hm, ", "", [], None),
        ("Hm, 2 < 3.", "Let me ", [], None),
        ("Hm, 2 < 3.", "Let me see.", [""], None),
        ("Hm, 2 < 3.", "Let me see.", ["{}", '{"city"'], None),
        ("Hm, 2 < 3.", "Let me see.", ["{}", '{"city": "Rome"}'], "tool_calls"),
    ]
    assert answer.characters == SentCharacters(text=11, reasoning=10, tool_calls=[2, 16])


def test_at_its_end_it_is_what_a_completion_has() -> None:
    answer, whole = PartialChoice(), completion(*OUTPUTS)
    for output in OUTPUTS:
        answer.add(output)
    assert answer.tool_calls == whole.tool_calls == CALLS
    assert (answer.text, answer.reasoning) == (whole.text, whole.reasoning)
    assert answer.message == whole.message


def test_what_was_given_out_does_not_change_any_more() -> None:
    answer = PartialChoice()
    for output in OUTPUTS[:3]:
        answer.add(output)
    before, pieces = answer.tool_calls, OUTPUTS[2].tool_calls
    for output in OUTPUTS[3:]:
        answer.add(output)
    assert before[0]["function"]["arguments"] == ""
    assert pieces == [call(0, "", "now")]


def test_its_message_is_one_that_requests_take() -> None:
    message = completion(*OUTPUTS).message
    assert message == {
        "role": "assistant",
        "content": "Let me see.",
        "reasoning": "Hm, 2 < 3.",
        "tool_calls": CALLS,
    }
    Message.model_validate(message)


def test_a_message_without_reasoning_and_calls_has_neither() -> None:
    assert completion(ChoiceOutput(0, 0, [1], "Hi")).message == {
        "role": "assistant",
        "content": "Hi",
    }
    assert PartialChoice().message == {"role": "assistant", "content": ""}


def test_a_call_that_goes_on_after_a_resume_has_what_came_of_it() -> None:
    answer = PartialChoice()
    answer.add(ChoiceOutput(0, 9, [1], "", tool_calls=[call(1, "}")]))
    assert answer.tool_calls == [{"function": {"arguments": "}"}}]


def test_many_pieces_are_one_text() -> None:
    answer = PartialChoice()
    for number in range(2000):
        answer.add(ChoiceOutput(0, number, [1], f"{number} "))
    assert answer.text == "".join(f"{number} " for number in range(2000))
    assert answer.characters.text == len(answer.text)
