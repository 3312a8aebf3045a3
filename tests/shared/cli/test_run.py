"""`cluster run` and `cluster chat` against a controller that answers as each test says."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from shared.bus import Bus
from shared.ids import RequestId
from shared.messages.stream import (
    ChoiceOutput,
    ChunkMessage,
    DoneMessage,
    ErrorDetails,
    FailedMessage,
    Timings,
    Usage,
)
from tests.processes import NatsProcess
from tests.shared.cli.simulated_cluster import Ran, run
from tests.shared.cli.terminal import Terminal
from tests.shared.client.simulated_controller import MAC, SimulatedController

pytestmark = pytest.mark.anyio

CALL = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
DIM = "\x1b[2m"


@pytest.fixture
async def controller(own_bus: Bus) -> SimulatedController:
    simulated = SimulatedController(own_bus)
    await simulated.open()
    return simulated


def thought(request_id: RequestId, text: str) -> ChunkMessage:
    return ChunkMessage(request_id, 0, MAC, ChoiceOutput(0, 0, [1], "", reasoning=text))


def said(request_id: RequestId, text: str, **fields: Any) -> DoneMessage:
    """The end of an answer of two tokens, with its content; `fields` are the output's."""
    output = ChoiceOutput(0, 1, [2], text, **{"finish_reason": "stop", **fields})
    warnings = ("thinking cannot be turned off",)
    usage = Usage(1, 0, 2, 1)
    return DoneMessage(request_id, 0, MAC, usage, Timings(1, 2, 3, 4), (output,), warnings=warnings)


async def answered(
    server: NatsProcess,
    controller: SimulatedController,
    *arguments: str,
    text: str = "Paris.",
    **fields: Any,
) -> tuple[Ran, dict[str, Any]]:
    """Run a command that asks once; its answer has reasoning, this text, and a warning."""
    running = asyncio.ensure_future(run(*arguments, "--nats", server.url, role="client"))
    request, request_id = await controller.next_request()
    await controller.send(request, thought(request_id, "Hm."), said(request_id, text, **fields))
    return await running, json.loads(request.payload)


async def test_run_prints_the_content_alone(
    server: NatsProcess, controller: SimulatedController
) -> None:
    ran, body = await answered(server, controller, "run", "Which?")
    assert (ran.status, ran.out) == (0, "Paris.\n")
    assert "Hm." not in ran.err
    assert "warning: thinking cannot be turned off\n" in ran.err
    assert "2 tokens (1 of reasoning)" in ran.err
    assert "reasoning_effort" not in body and "response_format" not in body


async def test_as_json_it_has_reasoning_calls_and_warnings(
    server: NatsProcess, controller: SimulatedController
) -> None:
    ran, _ = await answered(
        server,
        controller,
        *("run", "--json", "Which?"),
        text="",
        tool_calls=[{"index": 0, **CALL}],
        finish_reason="tool_calls",
    )
    answer = json.loads(ran.out)
    assert (ran.status, ran.err) == (0, "")
    assert (answer["text"], answer["reasoning"], answer["tool_calls"]) == ("", "Hm.", [CALL])
    assert answer["warnings"] == ["thinking cannot be turned off"]
    assert answer["usage"]["reasoning_tokens"] == 1


@pytest.mark.parametrize("command", ["run", "chat"])
async def test_thinking_can_be_turned_off(
    server: NatsProcess, controller: SimulatedController, command: str
) -> None:
    asking = ("run", "--no-think", "Hi") if command == "run" else ("chat", "--no-think")
    running = asyncio.ensure_future(
        run(*asking, "--nats", server.url, role="client", said="Hi\n/exit\n")
    )
    request, request_id = await controller.next_request()
    await controller.send(request, thought(request_id, ""), said(request_id, "Ho"))
    assert (await running).status == 0
    assert json.loads(request.payload)["reasoning_effort"] == "none"


async def test_on_a_terminal_thinking_is_shown_dimmed(
    server: NatsProcess, controller: SimulatedController
) -> None:
    async with Terminal("run", "--nats", server.url, "Which?") as terminal:
        request, request_id = await controller.next_request()
        await controller.send(request, thought(request_id, "Hm, 2 < 3."))
        await terminal.wrote(f"{DIM}Hm, 2 < 3.")
        await controller.send(request, said(request_id, "Paris."))
        await terminal.wrote("\r\n\r\nParis.\r\n")
        assert await terminal.ended() == 0


async def test_chat_keeps_what_was_thought_in_the_conversation(
    server: NatsProcess, controller: SimulatedController
) -> None:
    typed = "What is it?\nAnd that?\n/new\nAgain.\n"
    running = asyncio.ensure_future(run("chat", "--nats", server.url, role="client", said=typed))
    asked = []
    for text in ("This.", "That.", "Yes."):
        request, request_id = await controller.next_request()
        asked.append(json.loads(request.payload)["messages"])
        await controller.send(request, thought(request_id, "Hm."), said(request_id, text))
    ran = await running
    assert ran.status == 0 and "Hm." not in ran.out + ran.err
    assert asked[1] == [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "This.", "reasoning": "Hm."},
        {"role": "user", "content": "And that?"},
    ]
    assert asked[2] == [{"role": "user", "content": "Again."}]


async def test_what_was_thought_before_a_ctrl_c_stays_in_the_conversation(
    server: NatsProcess, controller: SimulatedController
) -> None:
    async with Terminal("chat", "--nats", server.url) as terminal:
        await terminal.wrote("> ")
        terminal.type("What is it?\r")
        request, request_id = await controller.next_request()
        await controller.send(request, thought(request_id, "Hm."))
        await terminal.wrote(f"{DIM}Hm.")
        terminal.signal(signal.SIGINT)
        await controller.next_cancel()
        terminal.type("And that?\r")
        request, request_id = await controller.next_request()
        await controller.send(request, thought(request_id, ""), said(request_id, "That."))
        await terminal.wrote("That.\r\n")
        terminal.type("/exit\r")
        assert await terminal.ended() == 0
    assert json.loads(request.payload)["messages"] == [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "", "reasoning": "Hm."},
        {"role": "user", "content": "And that?"},
    ]


async def test_chat_says_what_it_talks_to_and_lists_its_keys(server: NatsProcess) -> None:
    async with Terminal("chat", "--nats", server.url, "--model", "quick") as terminal:
        await terminal.wrote("Chatting with quick. /help lists the commands; Ctrl-D leaves.")
        terminal.type("/help\r")
        await terminal.wrote("/new       start a new conversation")
        terminal.type("/exit\r")
        assert await terminal.ended() == 0


# Schemas


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    file = tmp_path / "city.json"
    file.write_text('{"type": "object"}')
    return file


async def test_a_schema_binds_the_answer(
    server: NatsProcess, controller: SimulatedController, schema: Path
) -> None:
    ran, body = await answered(
        server, controller, "run", "--schema", str(schema), "Paris?", text='{"a": 1}'
    )
    assert (ran.status, ran.out) == (0, '{"a": 1}\n')
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.parametrize("flags", [(), ("--json",)])
async def test_an_answer_that_broke_off_is_printed_and_is_an_error(
    server: NatsProcess, controller: SimulatedController, schema: Path, flags: tuple[str, ...]
) -> None:
    arguments = ("run", *flags, "--schema", str(schema), "Paris?")
    ran, _ = await answered(server, controller, *arguments, text='{"a', finish_reason="length")
    assert ran.status == 1
    if flags:
        assert json.loads(ran.out)["text"] == '{"a'
        assert json.loads(ran.err)["error"]["code"] == "answer_incomplete"
    else:
        assert ran.out == '{"a\n'
        assert "error: the answer broke off after 2 tokens" in ran.err


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing.json", "No such file or directory"),
        ("broken.json", "line 1, column 10: not valid JSON"),
        ("list.json", "a schema must be an object, not a list"),
    ],
)
async def test_a_bad_file_is_refused_before_anybody_is_asked(
    tmp_path: Path, name: str, says: str
) -> None:
    (tmp_path / "broken.json").write_text('{"type": }')
    (tmp_path / "list.json").write_text("[]")
    file = tmp_path / name
    ran = await run("run", "--nats", "nats://127.0.0.1:1", "--schema", str(file), "x")
    assert (ran.status, ran.out) == (2, "")
    assert f"error: --schema: {file}: " in ran.err and says in ran.err
    assert "Traceback" not in ran.err


async def test_what_a_worker_says_of_the_schema_names_the_file(
    server: NatsProcess, controller: SimulatedController, schema: Path
) -> None:
    running = asyncio.ensure_future(
        run("run", "--nats", server.url, "--schema", str(schema), "x", role="client")
    )
    request, request_id = await controller.next_request()
    param = "response_format.json_schema.schema.properties.a"
    error = ErrorDetails.of("invalid_request", f"{param}: `not` is not supported", param)
    await controller.send(request, FailedMessage(request_id, 0, MAC, error))
    ran = await running
    assert ran.status == 2
    assert f"--schema: {schema}: schema.properties.a: `not` is not supported" in ran.err
    assert "response_format" not in ran.err


async def test_other_errors_stay_what_they_are(
    server: NatsProcess, controller: SimulatedController, schema: Path
) -> None:
    running = asyncio.ensure_future(
        run("run", "--nats", server.url, "--schema", str(schema), "x", role="client")
    )
    request, request_id = await controller.next_request()
    error = ErrorDetails.of("engine_crashed", "the engine ended")
    await controller.send(request, FailedMessage(request_id, 0, MAC, error))
    ran = await running
    assert ran.status == 1 and "error: the engine ended" in ran.err
