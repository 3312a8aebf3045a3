"""Ids of calls for chat templates that demand a form."""

import re
from typing import Any

from worker.answer.call_ids import WRITE_ID, short_id, written_ids


def test_short_ids_have_nine_letters_and_digits_and_are_always_the_same() -> None:
    ids = ["call_0123456789abcdef", "toolu_01", "", "ünï", "123456789"]
    written = [short_id(each) for each in ids]
    assert all(re.fullmatch("[A-Za-z0-9]{9}", each) for each in written)
    assert len(set(written)) == len(ids) and written == [short_id(each) for each in ids]
    assert written[-1] == "123456789"


def test_a_conversation_has_an_id_for_each_call() -> None:
    def call(call_id: str, name: str) -> dict[str, Any]:
        return {"id": call_id, "function": {"name": name, "arguments": "{}"}}

    messages: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [call("a", "now"), call("b", "later")]},
        {"role": "tool", "tool_call_id": "a"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "x"}}, call("c", "now")]},
    ]
    numbered = {"a": "functions.now:0", "b": "functions.later:1", "c": "functions.now:3"}
    assert written_ids(messages, WRITE_ID["kimi_k2"]) == numbered
    assert written_ids(messages, WRITE_ID["mistral"])["a"] == short_id("a")
    assert written_ids(messages, None) == {}
