"""The items of a response and their events, by value: whatever pieces an answer comes in."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from pydantic import TypeAdapter

from controller.gateway.responses.items import pack, unpack
from controller.gateway.responses.output import Event, OutputItems
from controller.gateway.responses.tool_names import (
    DeclaredTool,
    ToolNameMap,
    flat_name,
    wrapped_input,
)
from shared.errors import RequestError
from shared.messages.stream import ChoiceOutput

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
_PATCH = '*** Begin\n+é "x" \\ 東京\n'
NAMES = ToolNameMap(
    [
        DeclaredTool("function", "look"),
        DeclaredTool("custom", "patch"),
        DeclaredTool("function", "a", "mcp"),
    ]
)

Piece = tuple[str, str]
"""What of an answer comes next, and its text: reasoning, content, a new call, its arguments."""

ANSWERS: dict[str, list[Piece]] = {
    "nothing": [],
    "content": [("text", "It is nine.")],
    "thinking": [("reasoning", "Hm, 2 < 3."), ("text", "It is nine.")],
    "a call": [("reasoning", "Hm."), ("call", "look"), ("arguments", '{"a": [1, "é"]}')],
    "without arguments": [("call", "look")],
    "several": [
        ("text", "Let me see."),
        ("call", "look"),
        ("arguments", "{}"),
        ("call", "patch"),
        ("arguments", wrapped_input(_PATCH)),
        ("call", flat_name("a", "mcp")),
        ("arguments", '{"b": 2}'),
    ],
}


def outputs(pieces: Sequence[Piece]) -> Iterator[ChoiceOutput]:
    nothing = ChoiceOutput(0, 0, [], "")
    calls = -1
    for kind, text in pieces:
        match kind:
            case "reasoning":
                yield replace(nothing, reasoning=text)
            case "text":
                yield replace(nothing, text=text)
            case "call":
                calls += 1
                function = {"name": text, "arguments": ""}
                begun = {"index": calls, "id": f"call_{calls}", "type": "function"}
                yield replace(nothing, tool_calls=[{**begun, "function": function}])
            case _:
                piece = {"index": calls, "function": {"arguments": text}}
                yield replace(nothing, tool_calls=[piece])


def cut(pieces: Sequence[Piece], sizes: Iterator[int]) -> Iterator[Piece]:
    for kind, text in pieces:
        if kind == "call":
            yield kind, text
            continue
        while text:
            size = next(sizes)
            yield kind, text[:size]
            text = text[size:]


def made(
    pieces: Sequence[Piece], *, summarised: bool = False, status: Any = "completed"
) -> tuple[list[dict[str, Any]], list[Event]]:
    items = OutputItems("x", NAMES, summarised=summarised, packed=True)
    events = [event for output in outputs(pieces) for event in items.push(output)]
    events += items.finish(status)
    return items.items, events


@pytest.mark.parametrize("name", ANSWERS)
@given(data=st.data())
def test_however_it_is_cut_the_items_are_the_same(name: str, data: st.DataObject) -> None:
    def sizes() -> Iterator[int]:
        while True:
            yield data.draw(st.integers(1, 6))

    summarised = data.draw(st.booleans())
    whole, _ = made(ANSWERS[name], summarised=summarised)
    items, events = made(list(cut(ANSWERS[name], sizes())), summarised=summarised)
    assert items == whole
    check(items, events)


def check(items: list[dict[str, Any]], events: list[Event]) -> None:
    """Each event is one of the API, in its order, and all together make the items."""
    for item in items:
        _ITEM.validate_python(item)
    said: dict[tuple[int, str], str] = {}
    done = []
    begun = -1
    for event in events:
        _EVENT.validate_python({**event, "sequence_number": 0})
        kind, place = event["type"].removeprefix("response."), event["output_index"]
        if kind == "output_item.added":
            begun += 1
        assert place == begun, "one after the other"
        name = kind.rpartition(".")[0]
        if kind.endswith(".delta"):
            said[place, name] = said.get((place, name), "") + event["delta"]
        elif kind == "output_item.done":
            done.append(event["item"])
        elif kind.endswith(".done") and "part" not in event:
            text = event.get("text", event.get("arguments", event.get("input")))
            assert said.get((place, name), "") == text
    assert done == items


def test_names_are_the_callers_own() -> None:
    items, _ = made(ANSWERS["several"])
    message, look, patch, mcp = items
    assert message["content"][0]["text"] == "Let me see."
    assert (look["name"], look["arguments"], look["call_id"]) == ("look", "{}", "call_0")
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", _PATCH)
    assert (mcp["name"], mcp["namespace"], mcp["arguments"]) == ("a", "mcp", '{"b": 2}')
    assert len({item["id"] for item in items}) == 4


def test_what_was_cut_off_says_so() -> None:
    (message,), _ = made([("text", "It is")], status="incomplete")
    assert (message["status"], message["content"][0]["text"]) == ("incomplete", "It is")
    (_, call), _ = made(
        [("text", "a"), ("call", "patch"), ("arguments", '{"in')], status="incomplete"
    )
    assert call["input"] == '{"in'
    assert made([], status="incomplete") == ([], [])


@pytest.mark.parametrize("summarised", [False, True])
def test_reasoning_can_be_sent_back(summarised: bool) -> None:
    (reasoning, _), _ = made(ANSWERS["thinking"], summarised=summarised)
    assert bool(reasoning["summary"]) == summarised
    assert unpack(reasoning["encrypted_content"], max_bytes=1000) == "Hm, 2 < 3."


@given(st.text())
def test_what_is_packed_comes_out_as_it_was(text: str) -> None:
    assert unpack(pack(text), max_bytes=10**6) == text


def test_what_is_too_much_is_not_unpacked() -> None:
    assert unpack(pack("x" * 1000), max_bytes=1000) == "x" * 1000
    with pytest.raises(RequestError, match="too large"):
        unpack(pack("x" * 1001), max_bytes=1000)


@pytest.mark.parametrize("packed", ["", "gAAAAAB", "é", pack("x" * 900)[:-8]])
def test_what_is_not_ours_or_too_large_is_nothing(packed: str) -> None:
    assert unpack(packed, max_bytes=1000) is None
