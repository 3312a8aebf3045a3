"""What a model thinks, parted from what it says."""

import pytest

from tests.worker.answer.families import FAMILIES, Family, read
from tests.worker.answer.test_calls import TOOLS

QWEN = FAMILIES[0]
SPELLED = FAMILIES[1]
GEMMA = next(family for family in FAMILIES if family.name == "gemma4")
HARMONY = next(family for family in FAMILIES if family.tool_format is None)
GLM, SEED, KIMI_K3 = (
    next(family for family in FAMILIES if family.name == name)
    for name in ("glm", "seed_oss", "kimi_k3")
)

ANSWERS = [
    (QWEN, "<think>\nHm, 2 < 3.\n</think>\n\nYes."),
    (SPELLED, "<think>\nHm, 2 < 3.\n</think>\n\nYes."),
    (GEMMA, "<|channel>thought\nHm, 2 < 3.\n<channel|>Yes."),
    (GLM, "\n<think>Hm, 2 < 3.</think>\nYes."),
    (SEED, "<seed:think>Hm, 2 < 3.</seed:think>\nYes."),
    (
        KIMI_K3,
        "<|open|>think<|sep|>Hm, 2 < 3.<|close|>think<|sep|><|open|>response<|sep|>Yes."
        "<|close|>response<|sep|><|close|>message<|sep|>",
    ),
    (
        HARMONY,
        "<|channel|>analysis<|message|>Hm, 2 < 3.<|end|><|start|>assistant<|channel|>final"
        "<|message|>Yes.<|return|>",
    ),
]
each_answer = pytest.mark.parametrize(
    ("family", "answer"), ANSWERS, ids=[family.name for family, _ in ANSWERS]
)


@each_answer
def test_reasoning_and_content_are_parted(family: Family, answer: str) -> None:
    got = read(family.parser([]), family.tokens(answer))
    assert (got.reasoning, got.text) == ("Hm, 2 < 3.", "Yes.")


@each_answer
def test_it_does_not_matter_where_the_stream_is_cut(family: Family, answer: str) -> None:
    tokens = family.tokens(answer)
    whole = read(family.parser(TOOLS), tokens)
    for cut in range(len(tokens) + 1):
        pieces = ["".join(tokens[:cut]), "".join(tokens[cut:])]
        assert read(family.parser(TOOLS), pieces) == whole


@each_answer
def test_thinking_that_is_cut_off_stays_reasoning(family: Family, answer: str) -> None:
    tokens = family.tokens(answer)
    at = tokens.index("3") + 1
    got = read(family.parser([]), tokens[:at])
    assert (got.reasoning, got.text) == ("Hm, 2 < 3", "")


@pytest.mark.parametrize("family", [QWEN, SPELLED], ids=["added", "spelled"])
def test_reasoning_may_have_begun_in_the_prompt(family: Family) -> None:
    tokens = family.tokens("\nHm.\n\nSo.\n</think>\n\nYes.\n")
    got = read(family.parser([], opened=True), tokens)
    assert (got.reasoning, got.text) == ("Hm.\n\nSo.", "Yes.\n")


@pytest.mark.parametrize("family", [QWEN, SPELLED], ids=["added", "spelled"])
def test_a_call_follows_what_was_thought(family: Family) -> None:
    call = family.write([("get_weather", {"city": "Paris"})])
    tokens = family.tokens(f"<think>\nI call <tool_call>?\n</think>\n\n{call}")
    got = read(family.parser(TOOLS), tokens)
    assert got.reasoning == "I call <tool_call>?"
    assert got.text == ""
    assert got.calls == [("get_weather", '{"city": "Paris"}')]


def test_a_spelled_marker_begins_reasoning_only_where_the_answer_begins() -> None:
    prose = "Models write <think> before\n<think> and </think> after."
    got = read(SPELLED.parser([]), SPELLED.tokens(prose))
    assert (got.reasoning, got.text) == ("", prose)


def test_a_special_token_is_not_matched_where_it_is_spelled() -> None:
    prose = "<|channel>thought\nis how it begins, <channel|> how it ends."
    got = read(GEMMA.parser([]), list(prose))
    assert (got.reasoning, got.text) == ("", prose)


def test_a_stray_end_of_reasoning_does_not_leak() -> None:
    got = read(QWEN.parser([]), QWEN.tokens("Yes.</think> No."))
    assert got.text == "Yes. No."
    got = read(GEMMA.parser([]), GEMMA.tokens("Yes.<channel|> No."))
    assert got.text == "Yes. No."


def test_white_space_before_an_answer_that_does_not_think_stays() -> None:
    for answer in ("\n Yes.", " \n"):
        assert read(QWEN.parser([]), QWEN.tokens(answer)).text == answer


def test_calls_beside_an_empty_frame_of_content_are_all_there_is() -> None:
    answer = (
        "<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|>"
        + KIMI_K3.write([("now", {})])
        + "<|close|>message<|sep|>"
    )
    got = read(KIMI_K3.parser(TOOLS, opened=True), KIMI_K3.tokens(f"Hm.{answer}"))
    assert (got.reasoning, got.text, got.calls) == ("Hm.", "", [("now", "{}")])


def test_thinking_twice_is_reasoning_twice() -> None:
    got = read(QWEN.parser([]), QWEN.tokens("<think>\na\n</think>\n\nb <think>c</think>d"))
    assert (got.reasoning, got.text) == ("ac", "b d")


def test_messages_of_one_channel_are_parted() -> None:
    answer = (
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b"
        "<|end|><|start|>assistant<|channel|>commentary<|message|>c<|end|><|start|>assistant"
        "<|channel|>final<|message|>d<|return|>"
    )
    got = read(HARMONY.parser([]), HARMONY.tokens(answer))
    assert (got.reasoning, got.text) == ("a\n\nb", "c\n\nd")
